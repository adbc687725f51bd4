defmodule Snakepit.Ledger.Place do
  @moduledoc false

  # Where a run was: on which boot, in which pid namespace, on which machine. Only a start in the same place
  # may end what is left of it. In another container its pids belong to other processes, and on another
  # machine there is nothing to end.
  #
  # | boot | namespace | machine | |
  # |---|---|---|---|
  # | same | same | | `:here` |
  # | same | another | | `:other_container`, in another container of this kernel |
  # | another | same | same | `:other_boot`, of this machine: nothing is left |
  # | another | | another or unknown | `:elsewhere`, for example on a volume that machines share |
  # | unknown | same or unknown | same | `:here`, and a recorded process is not ended on the word of the ledger alone |
  # | unknown | another | | `:elsewhere` |
  # | unknown | | another or unknown | `:elsewhere` |

  alias Snakepit.{DataDir, Native}

  @type t :: %{machine: String.t() | nil, namespace: String.t() | nil}
  @type whereabouts :: :here | :other_container | :other_boot | :elsewhere

  @doc "Returns this place, for the record of a run."
  @spec current() :: t()
  def current, do: %{machine: machine(), namespace: namespace()}

  @doc "Returns where a run was, from the identity of its BEAM and the place in its record."
  @spec whereabouts(Native.identity(), t() | nil) :: whereabouts()
  def whereabouts(beam, place) do
    case Native.identity_scope(beam) do
      {:ok, scope} -> decide(scope, place || %{}, current())
      {:error, {reason, _os_pid}} -> DataDir.unreadable!(:reap, reason, :here)
    end
  end

  @doc false
  @spec decide(atom(), map(), t()) :: whereabouts()
  def decide(:here, _then, _now), do: :here
  def decide(:other_namespace, _then, _now), do: :other_container
  def decide(:elsewhere, _then, _now), do: :elsewhere

  def decide(:other_boot, then, now) do
    if same?(then, now, :machine) and same?(then, now, :namespace),
      do: :other_boot,
      else: :elsewhere
  end

  def decide(:unknown, then, now), do: if(same?(then, now, :machine), do: :here, else: :elsewhere)

  # What is not known is not the same.
  defp same?(then, now, key), do: Map.get(then, key) == Map.get(now, key) and now[key] != nil

  # Both: images are copied with the first, and the second is `localhost` on many machines.
  defp machine do
    with {:ok, text} <- File.read("/etc/machine-id"),
         id when byte_size(id) == 32 <- String.trim(text),
         {:ok, name} <- :inet.gethostname() do
      "#{id}@#{name}"
    else
      _unknown -> nil
    end
  end

  defp namespace do
    case File.read_link("/proc/self/ns/pid") do
      {:ok, namespace} -> namespace
      {:error, _reason} -> nil
    end
  end
end
