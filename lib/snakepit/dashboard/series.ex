defmodule Snakepit.Dashboard.Series do
  @moduledoc false

  # What was measured over time: a bounded list of points, newest first. Of CPU time, which only grows, a point has what
  # was used per second since the last one, in percent of one processor.

  # Two minutes at a look per second, and twenty where nobody looks. A thousand workers take 6 MB.
  @most 120

  defstruct cpu_us: nil, at: nil, points: []

  @typedoc "`at` is milliseconds since the epoch."
  @type point :: [at: integer(), cpu: float() | nil, memory: non_neg_integer()]
  @type t :: %__MODULE__{
          cpu_us: non_neg_integer() | nil,
          at: integer() | nil,
          points: [nonempty_list()]
        }

  @doc """
  Adds what was measured at a time, and what else is to be in that point.

      iex> alias Snakepit.Dashboard.Series
      iex> series = %Series{} |> Series.add(1_000, 5_000, 100) |> Series.add(3_000, 1_005_000, 120)
      iex> Series.points(series)
      [[1_000, nil, 100], [3_000, 50.0, 120]]

  """
  @spec add(t(), integer(), non_neg_integer(), non_neg_integer(), list()) :: t()
  def add(series, at, cpu_us, memory, more \\ []) do
    point = [at, percent(series, at, cpu_us), memory | more]
    %{series | cpu_us: cpu_us, at: at, points: [point | Enum.take(series.points, @most - 1)]}
  end

  @doc "Returns the points, oldest first: time, CPU in percent or `nil`, memory in bytes, and what was added."
  @spec points(t(), pos_integer()) :: [nonempty_list()]
  def points(series, most \\ @most), do: series.points |> Enum.take(most) |> Enum.reverse()

  @doc "Returns the CPU of the last point."
  @spec cpu(t()) :: float() | nil
  def cpu(%{points: [[_at, cpu | _] | _]}), do: cpu
  def cpu(_empty), do: nil

  # The sum of a group goes down when one of it ends.
  defp percent(%{at: then} = series, at, cpu_us) when is_integer(then) and at > then,
    do: Float.round(max(cpu_us - series.cpu_us, 0) / (at - then) / 10, 1)

  defp percent(_first, _at, _cpu_us), do: nil
end
