defmodule Snakepit.Run do
  @moduledoc false

  # The current run of this BEAM: its id, its directory, and the files that it holds open there for as long as
  # it lives. Another BEAM that can take the lock of a run knows that its BEAM is dead.

  alias Snakepit.{DataDir, Error, Native, RunID, Telemetry}
  alias Snakepit.Guardian.Grace
  alias Snakepit.Ledger.{Journal, Place, RunDirectory}

  # Errors of `flock` where it is not supported.
  @without_locks [:enosys, :enolck, :eopnotsupp, :eperm]

  @enforce_keys [:id, :data_dir, :directory, :instance, :lock, :journal, :record, :begun, :grace]
  defstruct @enforce_keys

  @typedoc """
  `instance` stands for the data directory: one never touches another's processes. `record` is
  what the ledger keeps of the run itself, `begun` a monotonic time in milliseconds, `grace` what
  `Snakepit.Guardian.Grace` knows.
  """
  @type t :: %__MODULE__{
          id: RunID.t(),
          data_dir: Path.t(),
          directory: Path.t(),
          instance: String.t(),
          lock: reference(),
          journal: reference(),
          record: map(),
          begun: integer(),
          grace: :atomics.atomics_ref()
        }

  @doc """
  Claims a new id by creating its directory: a directory can be created once, so no two runs of a
  host share an id. When this returns the kernel knows that the run exists; the disk does before it may
  start anything (`Snakepit.RunState`).
  """
  @spec create!(map()) :: t()
  def create!(config) do
    begun = System.monotonic_time(:millisecond)
    {data_dir, instance} = DataDir.prepare!(config)
    run = claim!(data_dir, instance, config)
    :persistent_term.put(__MODULE__, run)

    Telemetry.execute(
      [:snakepit, :run, :started],
      %{count: 1, duration_ms: run.begun - begun},
      %{run_id: run.id}
    )

    run
  end

  @doc "Returns this BEAM's run; raises if Snakepit is not started."
  @spec current!() :: t()
  def current!, do: current() || not_started!()

  @doc "Returns this BEAM's run; `nil` if Snakepit is not started."
  @spec current() :: t() | nil
  def current, do: :persistent_term.get(__MODULE__, nil)

  @doc "Raises an error that says what to do about it."
  @spec not_started!() :: no_return()
  def not_started! do
    raise "Snakepit is not started: add :snakepit to your applications, or run Application.ensure_all_started(:snakepit)"
  end

  @doc "Releases the lock of the run: from here on another BEAM may reap it."
  @spec release(t()) :: :ok
  def release(run) do
    :persistent_term.erase(__MODULE__)
    Native.journal_close(run.journal)
    Native.lock_release(run.lock)
  end

  defp claim!(data_dir, instance, config) do
    id = RunID.generate()
    directory = Path.join(data_dir, id)

    with :ok <- make(directory),
         {:ok, lock} <- lock(directory),
         {:ok, journal} <- journal(directory),
         {:ok, record} <- announce(journal, id, instance) do
      %__MODULE__{
        id: id,
        data_dir: data_dir,
        directory: directory,
        instance: instance,
        lock: lock,
        journal: journal,
        record: record,
        begun: System.monotonic_time(:millisecond),
        grace: Grace.new(config.watchdog.grace_period_ms)
      }
    else
      # Someone has that id, or came between the directory and its lock.
      :taken ->
        claim!(data_dir, instance, config)

      {:error, %Error{operation: :lock, reason: reason}} when reason in @without_locks ->
        File.rm_rf(directory)

        why =
          "cannot hold a lock (flock: #{DataDir.why(reason)}): its file system has none, or a sandbox"

        DataDir.refuse!(data_dir, why <> " forbids the call")

      # The data directory has no part in it.
      {:error, %Error{operation: :identify} = error} ->
        File.rm_rf(directory)
        raise error

      {:error, %Error{}} = error ->
        File.rm_rf(directory)
        DataDir.written!(error, data_dir)
    end
  end

  # The directory is created with its mode, so that there is no moment at which other users could enter it.
  defp make(directory) do
    case Native.directory_claim(directory) do
      {:ok, {}} -> :ok
      {:error, {:eexist, _}} -> :taken
      {:error, error} -> {:error, Error.from_native(:claim, error)}
    end
  end

  # Another BEAM's reaper may have removed the directory while it was still empty: start over.
  defp lock(directory) do
    case Native.lock_take(RunDirectory.lock(directory)) do
      {:ok, nil} -> :taken
      {:ok, lock} -> {:ok, lock}
      {:error, {:enoent, _}} -> :taken
      {:error, error} -> {:error, Error.from_native(:lock, error)}
    end
  end

  # The same holds here.
  defp journal(directory) do
    with {:error, %Error{reason: :enoent}} <- Journal.open(directory), do: :taken
  end

  defp announce(journal, id, instance) do
    os_pid = String.to_integer(System.pid())

    with {:ok, beam} <- identify(os_pid), do: announce(journal, id, instance, os_pid, beam)
  end

  defp identify(os_pid) do
    case Native.process_lookup(os_pid) do
      {:ok, {^os_pid, beam}} -> {:ok, beam}
      {:error, error} -> {:error, Error.from_native(:identify, error)}
    end
  end

  defp announce(journal, id, instance, os_pid, beam) do
    now = System.os_time(:millisecond)

    record = %{
      run_id: id,
      instance: instance,
      state: :initializing,
      beam: beam,
      beam_pid: os_pid,
      place: Place.current(),
      node: Atom.to_string(node()),
      started_at: now,
      changed_at: now,
      clean_shutdown: nil
    }

    with :ok <- Journal.append(journal, {:run, record}), do: {:ok, record}
  end
end
