defmodule Snakepit.Cluster.Lease.Rules do
  @moduledoc false

  # How long everything takes in a lease. `native/snakepit_lease` says why, and checks it with a model.

  # A clock that runs faster than another by no more than this, in per cent of the time. Quartz is a thousand times better;
  # what is left is for clocks that are being corrected.
  @drift_percent 2
  @least_drift_ms 20
  # What the kernel may take to carry out SIGKILL, of a guardian that has to be woken for it.
  @ending_percent 6
  @least_ending_ms 150

  @shortest_ms 1_000
  @longest_ms 600_000

  @doc "The shortest and the longest lease."
  def range, do: {@shortest_ms, @longest_ms}

  @doc "Returns how long the grant of a member counts for the holder, from the moment at which it sent its request."
  @spec counts(pos_integer()) :: pos_integer()
  def counts(lease), do: lease - max(div(lease * @drift_percent, 100), @least_drift_ms)

  @doc "Returns how long before the end of a lease of this length its process is killed."
  @spec ending(pos_integer()) :: pos_integer()
  def ending(lease), do: max(div(lease * @ending_percent, 100), @least_ending_ms)

  @doc "Returns how often a lease is renewed."
  @spec interval(pos_integer()) :: pos_integer()
  def interval(lease), do: div(lease, 3)

  @doc """
  Returns until when the grants of a majority last, if those that were granted last until the given moments. Members that
  have not granted count.

      iex> Snakepit.Cluster.Lease.Rules.majority_until([7, 9], 3)
      7
      iex> Snakepit.Cluster.Lease.Rules.majority_until([7], 3)
      nil

  """
  @spec majority_until([integer()], pos_integer()) :: integer() | nil
  def majority_until(moments, members),
    do: moments |> Enum.sort(:desc) |> Enum.at(div(members, 2))
end
