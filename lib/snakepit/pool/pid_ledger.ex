defmodule Snakepit.Pool.PIDLedger do
  @moduledoc """
  The ledger of this run: its journal and its DETS table. A later start reads them if this BEAM and its guardian
  have died.

  When `register_process/2` returns for a process, the kernel has the record, and it survives `kill -9` of the BEAM.
  Reservations and deletions, which name no living process, are written together with the next record, within a second.
  This process checkpoints the journal into DETS once a second, and archives both as history when the application stops.

  It is the first process that starts. It ends what earlier runs have left behind before anything else may run.
  """

  use GenServer, shutdown: 30_000

  require Logger

  alias Snakepit.{AlignedTimer, Config, DataDir, Error, Native, Options}
  alias Snakepit.Ledger.History
  alias Snakepit.{Run, RunState}
  alias Snakepit.Cleanup.{Hook, Reaper}
  alias Snakepit.Ledger.{Journal, Table}

  @checkpoint_interval_ms 1_000
  # What a field has room for.
  @largest 0x7FFFFFFFFFFFFFFF

  @fields [
    status: [type: {:one_of, [:reserved, :active]}, default: :active],
    os_pid: [type: {:integer, 1, @largest}, default: nil],
    pgid: [type: {:integer, 1, @largest}, default: nil],
    identity: [type: :string, default: nil],
    elixir_pid: [type: {:custom, &__MODULE__.pid_text?/1, "a pid such as <0.1.0>"}, default: nil],
    command: [type: {:custom, &__MODULE__.command?/1, "a list of strings"}, default: []],
    # Now, if it is not given.
    spawned_at: [type: {:integer, -@largest, @largest}]
  ]

  @typedoc """
  What is kept of a worker. `spawned_at` is milliseconds since the epoch, for people.
  """
  @type entry :: %{
          worker_id: String.t(),
          run_id: String.t(),
          status: :reserved | :active,
          os_pid: pos_integer() | nil,
          pgid: pos_integer() | nil,
          identity: binary() | nil,
          elixir_pid: String.t() | nil,
          command: [binary()],
          spawned_at: integer()
        }

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc """
  Records a worker, under its id. What is not given stays empty; a record of the same id is replaced.

      iex> alias Snakepit.Pool.PIDLedger
      iex> PIDLedger.register_process("doc-ledger", status: :reserved)
      :ok
      iex> [entry] = for entry <- PIDLedger.all(), entry.worker_id == "doc-ledger", do: entry
      iex> {entry.status, entry.run_id == Snakepit.run_id()}
      {:reserved, true}
      iex> PIDLedger.unregister_process("doc-ledger")
      :ok

  """
  @spec register_process(String.t(), keyword() | map()) :: :ok | {:error, Error.t()}
  def register_process(worker_id, fields \\ []) do
    # What is written here is read when it is too late to ask: a record that makes no sense is refused.
    Options.check!(worker_id, :text, :worker_id)
    fields = check!(fields)
    if fields.status == :reserved, do: note(worker_id, fields), else: record(worker_id, fields)
  end

  # Before anything is done with them that a mistake would leave half done.
  @doc false
  @spec check!(keyword() | map()) :: map()
  def check!(fields) do
    fields = if is_map(fields), do: Map.to_list(fields), else: fields
    Options.validate!(fields, @fields, "a worker's record")
  end

  # For the registry, which has checked both.
  @doc false
  @spec record(String.t(), map()) :: :ok | {:error, Error.t()}
  def record(worker_id, fields) do
    run = Run.current!()
    Journal.append(run.journal, entry(run, worker_id, fields))
  end

  # The same for what is written with the next record, or within a second: it names no process, or one that the
  # ledger has among the guardian's children.
  @doc false
  @spec note(String.t(), map()) :: :ok | {:error, Error.t()}
  def note(worker_id, fields) do
    run = Run.current!()
    Journal.note(run.journal, entry(run, worker_id, fields))
  end

  defp entry(run, worker_id, fields) do
    {
      :worker,
      worker_id,
      run.id,
      fields.status,
      fields.os_pid,
      fields.pgid,
      fields.identity,
      fields.elixir_pid,
      fields.command,
      fields[:spawned_at] || System.os_time(:millisecond)
    }
  end

  @doc false
  def command?(command) when is_list(command),
    do: not List.improper?(command) and Enum.all?(command, &is_binary/1)

  def command?(_other), do: false

  # The registry makes a pid of it when it is started again.
  @doc false
  def pid_text?(text), do: is_binary(text) and text =~ ~r/\A<\d+\.\d+\.\d+>\z/

  @doc "Deletes the record of a worker. The caller has made sure that its process is gone."
  @spec unregister_process(String.t()) :: :ok | {:error, Error.t()}
  def unregister_process(worker_id) when is_binary(worker_id) do
    Journal.note(Run.current!().journal, {:gone, worker_id})
  end

  # So that a later start can wait for the guardian to finish.
  @doc false
  @spec register_guardian(Native.identity()) :: :ok | {:error, Error.t()}
  def register_guardian(identity),
    do: Journal.append(Run.current!().journal, {:guardian, identity})

  @doc "Returns every record of this run."
  @spec all() :: [entry()]
  def all, do: GenServer.call(__MODULE__, :all, 30_000)

  # The same, for a registry that begins, as it does at each start: nothing is synced for it.
  @doc false
  def recall, do: GenServer.call(__MODULE__, :recall, 30_000)

  @doc "Returns the OS pids of this run's recorded processes."
  @spec get_all_pids() :: [pos_integer()]
  def get_all_pids, do: for(%{os_pid: os_pid} <- all(), os_pid != nil, do: os_pid)

  @doc """
  Forgets every process that is gone. Those that are not stay, and are named in the error: an entry
  goes away only when the death is confirmed.
  """
  @spec clear() :: :ok | {:error, Error.t()}
  def clear do
    {alive, gone} = Enum.split_with(all(), &alive?/1)

    with :ok <- unregister(gone) do
      case alive do
        [] -> :ok
        _ -> {:error, error(:clear, :survivors, os_pids: Enum.map(alive, & &1.os_pid))}
      end
    end
  end

  # Up to the first that fails.
  defp unregister(entries) do
    Enum.find_value(entries, :ok, fn entry ->
      with :ok <- unregister_process(entry.worker_id), do: nil
    end)
  end

  @doc "Returns the path of this run's table."
  @spec path() :: Path.t()
  def path, do: Table.path(Run.current!().directory)

  # As a child of the supervisor that is no process: what comes after it starts when the disk knows that this
  # run is running, and not at all if that failed.
  @doc false
  def await_recorded do
    with nil <- GenServer.call(__MODULE__, :failure, :infinity), do: :ignore
  end

  # Says how the barrier went; it is kept in the history.
  @doc false
  def note_shutdown(report), do: GenServer.cast(__MODULE__, {:shutdown, report})

  @impl true
  def init(_opts) do
    # The supervisor above has given up and closed the run. There is nothing to go on with.
    if RunState.current() == :terminated, do: {:stop, :terminated}, else: open()
  end

  defp open do
    Process.flag(:trap_exit, true)
    run = Run.current!()
    config = Config.current()

    # Not after a crash of this process: then the run is where it was.
    fresh? = RunState.current() == :initializing
    if fresh?, do: clean_up(run, config)

    state = %{
      run: run,
      config: config,
      # From `handle_continue/2` on; or why there is none.
      table: nil,
      failure: nil,
      # Whether the last checkpoint has stored all that had been appended.
      checkpointed?: false,
      failing: nil,
      report: nil
    }

    {:ok, schedule(state), {:continue, {:record, fresh?}}}
  end

  # While the guardian's program is started, which takes as long. See `await_recorded/0`.
  @impl true
  def handle_continue({:record, fresh?}, %{run: run} = state) do
    if fresh?, do: advance!(:running, run)
    {:noreply, %{state | table: open!(run)}}
  rescue
    error -> {:noreply, %{state | failure: {error, __STACKTRACE__}}}
  end

  @impl true
  def handle_call(:all, from, state), do: handle_call(:recall, from, checkpoint(state))

  def handle_call(:recall, _from, state) do
    Journal.flush(state.run.journal)
    {entries, _ignored} = Journal.read(state.run.directory)
    # What no checkpoint has stored yet is still in the journal.
    contents = state.table |> Table.contents(state.run.directory) |> Table.apply_entries(entries)
    {:reply, Map.values(contents.workers), state}
  end

  def handle_call(:failure, _from, state),
    do: {:reply, state.failure && {:error, state.failure}, state}

  @impl true
  def handle_cast({:shutdown, report}, state), do: {:noreply, %{state | report: report}}

  @impl true
  def handle_info(:checkpoint, state), do: {:noreply, state |> checkpoint() |> schedule()}
  def handle_info(_other, state), do: {:noreply, state}

  @impl true
  # The start failed halfway. The next one finds what was recorded.
  def terminate(_reason, %{table: nil}), do: :ok

  def terminate(reason, state) do
    # Restarted after a crash it goes on with the run; otherwise this is the end of it.
    if orderly?(reason), do: finish(state), else: checkpoint(state)
    :dets.close(state.table)
  end

  defp orderly?(reason), do: reason in [:normal, :shutdown] or match?({:shutdown, _}, reason)

  defp clean_up(run, config) do
    advance!(:cleaning_stale, run)
    Hook.call(:before_reap, config)
    Reaper.reap(run, config)
    Hook.call(:after_reap, config)
  end

  defp advance!(state, run), do: state |> RunState.advance() |> DataDir.written!(run.data_dir)

  defp finish(state) do
    # Not stopped by anybody: its supervisor has given up.
    if RunState.current() == :running, do: RunState.shut_down()
    report = state.report || %{found: 0, killed: 0, survivors: [], clean_shutdown: false}

    with {:ok, record} <-
           RunState.advance(:terminated, clean_shutdown: report.clean_shutdown) do
      by = if report.clean_shutdown, do: :clean_shutdown, else: :cleanup

      ending = %{
        terminated_by: by,
        ended_at: System.os_time(:millisecond),
        found: report.found,
        killed: report.killed,
        gone: report.found - length(report.survivors),
        ambiguous: 0
      }

      RunState.put_ending(Map.take(ending, [:terminated_by, :found, :killed, :ambiguous]))
      # Order: the guardian has written it, and ended, before this process was told to.
      usage = state.run.directory |> Native.obituary_read() |> History.usage()
      ending = Map.merge(ending, usage)
      History.close(state.run.directory, record, ending, state.config.history.keep)
    end
  end

  defp open!(run) do
    case Table.open(__MODULE__, run.directory) do
      {:ok, table} -> table
      {:error, {:file_error, _file, _reason}} = error -> DataDir.written!(error, run.data_dir)
      {:error, reason} -> open_anew!(run, reason)
    end
  end

  # A table that DETS refuses is of no use, and not in the way.
  defp open_anew!(run, reason) do
    aside = Table.set_aside(Table.path(run.directory), "refused")

    Logger.error(
      "Snakepit's ledger is corrupt (#{inspect(reason)}) and was set aside as #{aside}"
    )

    {:ok, table} = Table.open(__MODULE__, run.directory)
    table
  end

  # Failing is nothing that the workers would have to know of: the journal has it all, and refuses
  # new ones if it cannot take them.
  defp checkpoint(%{run: run, table: table} = state) do
    # Mostly nothing has happened, and then no file is touched. A start that has failed has no table.
    if table == nil or (state.checkpointed? and Journal.empty?(run.journal)) do
      state
    else
      case Journal.checkpoint(run.journal, run.directory, &Table.store(table, &1)) do
        :ok -> recovered(%{state | checkpointed?: true})
        {:error, error} -> failed(%{state | checkpointed?: false}, error)
      end
    end
  end

  defp recovered(%{failing: nil} = state), do: state

  defp recovered(state) do
    Logger.warning("Snakepit's ledger can be written again; workers can be started")
    %{state | failing: nil}
  end

  # Once, not every second.
  defp failed(%{failing: nil} = state, error) do
    Logger.error("""
    Snakepit's ledger in #{state.run.directory} cannot be written: #{Exception.message(error)}. \
    Running workers continue and will be ended; no worker can be started until this is fixed.\
    """)

    %{state | failing: error}
  end

  defp failed(state, _error), do: state

  defp schedule(state) do
    Process.send_after(self(), :checkpoint, AlignedTimer.next(@checkpoint_interval_ms), abs: true)
    state
  end

  # In doubt it is alive.
  defp alive?(%{identity: nil}), do: false
  defp alive?(%{identity: identity}), do: Native.process_alive(identity) != {:ok, false}

  defp error(operation, reason, fields),
    do: struct!(Error, [operation: operation, reason: reason] ++ fields)
end
