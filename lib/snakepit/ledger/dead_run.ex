defmodule Snakepit.Ledger.DeadRun do
  @moduledoc false

  # What a run whose BEAM is gone has left in its directory. None of it is believed unchecked: damaged parts
  # are counted and left out.

  require Logger

  alias Snakepit.{DataDir, Error, Native}
  alias Snakepit.Ledger.{Journal, Place, RunDirectory, SignOfLife, Table}

  # No process is given more.
  @longest_ms 0x7FFFFFFF

  @enforce_keys [:id, :directory, :lock]
  defstruct [
    :id,
    :directory,
    :lock,
    :record,
    :guardian,
    :place,
    # When a file of it was last written, in seconds since the epoch.
    :last_written_s,
    grace: 0,
    workers: [],
    children: [],
    adopted: [],
    bad: 0,
    ignored: 0
  ]

  @type t :: %__MODULE__{
          id: String.t(),
          directory: Path.t(),
          lock: reference(),
          record: map() | nil,
          guardian: Native.identity() | nil,
          place: Place.whereabouts() | :running | nil,
          last_written_s: integer() | nil,
          grace: non_neg_integer(),
          workers: [map()],
          children: [Native.identity()],
          adopted: [Native.identity()],
          bad: non_neg_integer(),
          ignored: non_neg_integer()
        }

  @doc """
  Reads the run of a directory whose lock has been taken. Raises if that fails for a reason that may not
  be there the next time: to take what cannot be read for what is not there would forget processes.
  """
  @spec read(String.t(), Path.t(), reference()) :: t()
  def read(id, directory, lock) do
    # Order: before a corrupt ledger is set aside, which writes to the directory.
    last_written_s = SignOfLife.last_s(directory)
    {entries, ignored} = Journal.read!(directory)

    if ignored > 0,
      do: Logger.warning("Snakepit ignored #{ignored} corrupt bytes in #{directory}/journal")

    contents = directory |> table() |> Table.apply_entries(entries)

    %__MODULE__{
      id: id,
      directory: directory,
      lock: lock,
      last_written_s: last_written_s,
      record: believable(contents.run),
      guardian: if(is_binary(contents.guardian), do: contents.guardian),
      grace: if(contents.grace in 0..@longest_ms, do: contents.grace, else: 0),
      workers: for({_id, %{run_id: ^id} = worker} <- contents.workers, do: worker),
      children: contents.children,
      adopted: for({_os_pid, identity} <- adopted(directory), do: identity),
      bad: contents.bad,
      ignored: ignored
    }
  end

  @doc "Returns every process that it recorded."
  @spec identities(t()) :: [Native.identity()]
  def identities(run) do
    workers = for %{identity: identity} when identity != nil <- run.workers, do: identity
    Enum.uniq(workers ++ run.children ++ run.adopted)
  end

  @doc "Returns whether only its directory had been made, and nothing was recorded."
  @spec blank?(t()) :: boolean()
  def blank?(run) do
    run.record == nil and run.ignored == 0 and RunDirectory.blank?(files(run.directory))
  end

  @doc """
  Returns its guardian, if that is still there. It is the process that the ledger names, and that has the id of this run
  among its own arguments: a ledger may name any process.
  """
  @spec living_guardian(t()) :: Native.identity() | nil
  def living_guardian(%{guardian: nil}), do: nil

  def living_guardian(run) do
    case Native.guardian_find(run.guardian, run.id) do
      {:ok, {_os_pid, identity}} -> identity
      {:ok, nil} -> nil
      {:error, {reason, _os_pid}} -> DataDir.unreadable!(:reap, reason, nil)
    end
  end

  @doc """
  Returns where its BEAM ran, see `Snakepit.Ledger.Place`; or `:running` if it still runs here, which its lock should
  have prevented.
  """
  @spec whereabouts(t()) :: Place.whereabouts() | :running
  def whereabouts(%{record: %{beam: beam} = record}) do
    place = Place.whereabouts(beam, record[:place])
    if place == :here and another_runs?(beam, record), do: :running, else: place
  end

  def whereabouts(_unknown), do: :here

  @doc """
  Returns when it ended, in milliseconds since the epoch: when its guardian noticed the death of its BEAM, when it had
  stopped in order, or when it last wrote a file, which the auditor of every run does at its interval.
  """
  @spec ended_at(t(), map() | nil) :: integer()
  def ended_at(%{record: %{state: :terminated, changed_at: ended_at}}, _obituary), do: ended_at
  def ended_at(_run, %{detected_at: detected_at}), do: detected_at
  def ended_at(%{last_written_s: nil}, nil), do: System.os_time(:millisecond)

  # The time of a file may be of a coarser clock than the time of a start.
  def ended_at(run, nil) do
    last_written = run.last_written_s * 1_000
    max(last_written, (run.record || %{})[:started_at] || last_written)
  end

  defp files(directory) do
    case Native.directory_list(directory) do
      {:ok, names} -> names
      # Another start has removed it meanwhile.
      {:error, {:enoent, _os_pid}} -> []
      {:error, error} -> raise Error.from_native(:reap, error)
    end
  end

  defp adopted(directory) do
    case Native.adopted_read(directory) do
      {:ok, adopted} -> adopted
      {:error, {reason, _os_pid}} -> DataDir.unreadable!(:reap, reason, [])
    end
  end

  # A process that may be the BEAM counts as the BEAM.
  defp alive?(beam) do
    case Native.process_alive(beam) do
      {:ok, alive?} -> alive?
      {:error, {:ambiguous, _os_pid}} -> true
      {:error, {reason, _os_pid}} -> DataDir.unreadable!(:reap, reason, false)
    end
  end

  # This very BEAM may have stopped and started Snakepit, with a disk in between that was full.
  defp another_runs?(beam, record) do
    alive?(beam) and Integer.to_string(record[:beam_pid] || 0) != System.pid()
  end

  defp table(directory) do
    case Table.read(directory) do
      {:ok, %{bad: 0} = contents} ->
        contents

      {:ok, contents} ->
        set_aside(directory, "damaged", "#{contents.bad} damaged records")
        contents

      {:error, reason} ->
        lost = DataDir.unreadable!(:reap, reason, %{Table.empty() | bad: 1})
        set_aside(directory, "refused", inspect(reason))
        lost
    end
  end

  # Kept for people; what can be read of it is read.
  defp set_aside(directory, why, details) do
    aside = Table.set_aside(Table.path(directory), why)
    Logger.warning("Snakepit: a corrupt ledger (#{details}) was set aside as #{aside}")
  end

  defp believable(%{run_id: _, beam: beam} = record) when is_binary(beam), do: record
  defp believable(_other), do: nil
end
