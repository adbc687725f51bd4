defmodule Snakepit.Pool.ProcessRegistry do
  @moduledoc """
  Who runs what: every worker of this BEAM, with its OS process and the BEAM process that owns it.

  A worker is registered in two steps, one before its process exists and one before it may run
  anything:

      :ok = ProcessRegistry.reserve_worker(id)
      {:ok, child} = Guardian.spawn(command, worker_id: id)
      :ok = ProcessRegistry.activate_worker(id, self(), child.os_pid, identity: child.identity)
      :ok = Guardian.release(child)

  When `reserve_worker/1` and `activate_worker/4` return, the ledger has it: see
  `Snakepit.Pool.PIDLedger`. Neither waits for another process; nor does any function that reads.
  Forgetting is this process's alone, so that no two forget one worker, and the second of them the
  next one of that name.

  An owner that dies has its process ended. An entry goes away only when its process is known to be
  gone, so that what could not be ended is not forgotten either.
  """

  use GenServer

  require Logger

  alias Snakepit.{Config, Error, Native, Run}
  alias Snakepit.Pool.PIDLedger

  @table __MODULE__
  # Workers whose owners are not watched yet.
  @new Module.concat(__MODULE__, New)
  # A worker that has not become active by then will not: its owner is stuck.
  @reservation_limit_ms 60_000
  @sweep_interval_ms 5_000
  # Until then an owner that dies is not noticed here. The guardian does, and ends its process at once;
  # what is left to do is to forget the worker.
  @watch_interval_ms 1_000
  # Owners often die together. Those that do within this time are dealt with together.
  @gather_ms 5

  @typedoc """
  `state` is that of the process: `:reserved` (none yet), `:alive` or `:dead`. `uptime_ms` counts from
  the activation.
  """
  @type info :: %{
          worker_id: String.t(),
          run_id: String.t(),
          status: :reserved | :active,
          owner: pid(),
          os_pid: pos_integer() | nil,
          pgid: pos_integer() | nil,
          identity: binary() | nil,
          command: [binary()],
          since_ms: integer(),
          spawned_at: integer() | nil
        }

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc """
  Takes a worker id, before there is a process. The caller is its owner until it is activated.

      iex> alias Snakepit.Pool.ProcessRegistry
      iex> ProcessRegistry.reserve_worker("doc-registry")
      :ok
      iex> {:error, error} = ProcessRegistry.reserve_worker("doc-registry")
      iex> error.reason
      :already_registered
      iex> ProcessRegistry.unregister_worker("doc-registry")
      :ok

  """
  @spec reserve_worker(String.t()) :: :ok | {:error, Error.t()}
  def reserve_worker(worker_id) do
    check_id!(worker_id)

    info = %{
      worker_id: worker_id,
      run_id: Run.current!().id,
      status: :reserved,
      owner: self(),
      os_pid: nil,
      pgid: nil,
      identity: nil,
      command: [],
      since_ms: now(),
      spawned_at: nil
    }

    # Order: the name first, so that no two get it; then the ledger; a failure there gives it back.
    if :ets.insert_new(@table, {worker_id, info, new_gate()}) do
      case PIDLedger.register_process(worker_id, status: :reserved) do
        :ok ->
          # Not a message: to wake another process takes longer than all of this, at the very moment at
          # which the new process needs the processor.
          :ets.insert(@new, {worker_id, self()})
          :ok

        {:error, error} ->
          :ets.delete(@table, worker_id)
          {:error, %{error | operation: :reserve_worker}}
      end
    else
      # Its owner may have died without anybody having noticed yet.
      GenServer.cast(__MODULE__, :watch_new)
      {:error, error(:reserve_worker, :already_registered, worker_id)}
    end
  end

  @doc """
  Records the process of a reserved worker, before it may run anything.

  `fingerprint` is what the process is known by: its identity, as `Snakepit.Guardian.spawn/2` gives
  it, or a keyword list of `:identity`, `:pgid` and `:command`. Without an identity it is looked up.
  """
  @spec activate_worker(String.t(), pid(), pos_integer(), binary() | keyword() | nil) ::
          :ok | {:error, Error.t()}
  def activate_worker(worker_id, owner, os_pid, fingerprint \\ nil)
      when is_pid(owner) and is_integer(os_pid) do
    check_id!(worker_id)

    with {:ok, fields} <- fingerprint(os_pid, fingerprint),
         {:ok, info} <- take_reservation(worker_id) do
      spawned_at = System.os_time(:millisecond)

      record = [
        status: :active,
        os_pid: os_pid,
        # A session leader leads its group.
        pgid: fields[:pgid] || os_pid,
        identity: fields[:identity],
        command: fields[:command] || [],
        spawned_at: spawned_at
      ]

      ledger = [elixir_pid: List.to_string(:erlang.pid_to_list(owner))] ++ record

      case PIDLedger.register_process(worker_id, ledger) do
        :ok ->
          active = Enum.into([owner: owner, since_ms: now()] ++ record, info)
          :ets.insert(@table, {worker_id, active, new_gate()})
          # Most of the time it is the one that made the reservation, who is watched already.
          if owner != info.owner, do: GenServer.cast(__MODULE__, {:watch, worker_id, owner})
          :ok

        {:error, error} ->
          :ets.insert(@table, {worker_id, info, new_gate()})
          {:error, %{error | operation: :activate_worker}}
      end
    end
  end

  @doc """
  Forgets a worker whose process is gone. One whose process is still there stays, and that is an
  error; one that is not registered is none.
  """
  @spec unregister_worker(String.t()) :: :ok | {:error, Error.t()}
  def unregister_worker(worker_id) do
    GenServer.call(__MODULE__, {:unregister, worker_id})
  catch
    # What it knows comes back with it, and the dead are sorted out then.
    :exit, _reason -> {:error, error(:unregister_worker, :registry_down, worker_id)}
  end

  @doc "What is known of a worker."
  @spec get_worker_info(String.t()) :: {:ok, info()} | {:error, Error.t()}
  def get_worker_info(worker_id) do
    case lookup(worker_id) do
      nil -> {:error, error(:get_worker_info, :not_found, worker_id)}
      info -> {:ok, info}
    end
  end

  @doc "All workers, reserved ones included."
  @spec list_all_workers() :: [{String.t(), info()}]
  def list_all_workers, do: for({id, info, _gate} <- :ets.tab2list(@table), do: {id, info})

  @doc "Whether a worker of this id is registered or reserved."
  @spec worker_registered?(String.t()) :: boolean()
  def worker_registered?(worker_id), do: :ets.member(@table, worker_id)

  @doc "The OS pids of all active workers."
  @spec get_active_process_pids() :: [pos_integer()]
  def get_active_process_pids,
    do: for({_id, %{status: :active} = info} <- list_all_workers(), do: info.os_pid)

  @doc "The OS pids of the active workers of a run, which are none unless it is this one."
  @spec pids_for_run(Snakepit.RunID.t()) :: [pos_integer()]
  def pids_for_run(run_id) do
    for {_id, %{status: :active, run_id: ^run_id} = info} <- list_all_workers(), do: info.os_pid
  end

  @doc "This run's id."
  @spec get_run_id() :: Snakepit.RunID.t()
  def get_run_id, do: Run.current!().id

  @doc "How many there are, and how many of their processes are alive."
  @spec get_stats() :: %{
          total_registered: non_neg_integer(),
          alive_workers: non_neg_integer(),
          dead_workers: non_neg_integer(),
          active_process_pids: [pos_integer()],
          reserved: non_neg_integer()
        }
  def get_stats do
    {reserved, active} =
      Enum.split_with(list_all_workers(), fn {_id, info} -> info.status == :reserved end)

    {dead, alive} = Enum.split_with(active, fn {_id, info} -> gone?(info) end)

    %{
      total_registered: length(reserved) + length(active),
      alive_workers: length(alive),
      dead_workers: length(dead),
      active_process_pids: for({_id, info} <- active, do: info.os_pid),
      reserved: length(reserved)
    }
  end

  @doc "Workers whose process is gone: they are about to be forgotten, or nobody noticed."
  @spec validate_workers() :: [{String.t(), info()}]
  def validate_workers do
    for {_id, %{status: :active} = info} = entry <- list_all_workers(), gone?(info), do: entry
  end

  @doc "Forgets workers whose process is gone. Gives how many."
  @spec cleanup_dead_workers() :: non_neg_integer()
  def cleanup_dead_workers, do: GenServer.call(__MODULE__, :cleanup_dead_workers, 30_000)

  @doc "Forgets reservations that have come to nothing. Gives how many."
  @spec sweep_reservations(non_neg_integer()) :: non_neg_integer()
  def sweep_reservations(older_than_ms \\ @reservation_limit_ms),
    do: GenServer.call(__MODULE__, {:sweep_reservations, older_than_ms})

  @impl true
  def init(_opts) do
    Process.flag(:trap_exit, true)
    # Written by the workers themselves, so that none waits for another.
    options = [:named_table, :public, :set, read_concurrency: true, write_concurrency: true]
    :ets.new(@table, options)
    :ets.new(@new, options)
    schedule_sweep()
    schedule_watch()
    state = %{monitors: %{}, workers: %{}, dying: %{}, ending: nil, config: Config.fetch!()}
    {:ok, recover(state)}
  end

  @impl true
  def handle_call({:unregister, worker_id}, _from, state) do
    case lookup(worker_id) do
      nil ->
        {:reply, :ok, state}

      info ->
        {answer, state} = remove_if_gone(state, info)
        {:reply, answer, state}
    end
  end

  def handle_call(:cleanup_dead_workers, _from, state) do
    dead = for {_id, info} <- validate_workers(), do: info
    {count, state} = remove_all(state, dead)
    {:reply, count, state}
  end

  def handle_call({:sweep_reservations, older_than_ms}, _from, state) do
    {count, state} = sweep(state, older_than_ms)
    {:reply, count, state}
  end

  @impl true
  def handle_cast({:watch, worker_id, owner}, state) do
    {:noreply, state |> watch_new() |> unwatch(worker_id) |> watch(worker_id, owner)}
  end

  def handle_cast(:watch_new, state), do: {:noreply, watch_new(state)}

  @impl true
  def handle_info({:DOWN, monitor, :process, pid, _reason}, state) do
    case state do
      %{ending: {^pid, ^monitor}} -> {:noreply, ended(state)}
      _ -> {:noreply, owner_down(state, monitor, pid)}
    end
  end

  def handle_info(:watch_new, state) do
    schedule_watch()
    {:noreply, watch_new(state)}
  end

  def handle_info(:end_dying, state), do: {:noreply, end_dying(state)}

  def handle_info(:sweep, state) do
    {_count, state} = sweep(state, @reservation_limit_ms)
    schedule_sweep()
    {:noreply, state}
  end

  def handle_info(_other, state), do: {:noreply, state}

  # After a crash of this process: the ledger knows the workers, and most of their owners live on.
  defp recover(state) do
    Enum.reduce(PIDLedger.all(), state, fn record, state ->
      owner = owner(record.elixir_pid)
      fields = [:worker_id, :run_id, :status, :os_pid, :pgid, :identity, :command, :spawned_at]
      info = record |> Map.take(fields) |> Map.merge(%{owner: owner, since_ms: now()})
      :ets.insert(@table, {record.worker_id, info, new_gate()})
      watch(state, record.worker_id, owner)
    end)
  end

  # One that is gone from the start, for a reservation whose owner nobody wrote down.
  defp owner(nil), do: spawn(fn -> :ok end)
  defp owner(text), do: text |> String.to_charlist() |> :erlang.list_to_pid()

  defp watch_new(state) do
    Enum.reduce(:ets.tab2list(@new), state, fn {worker_id, owner} = new, state ->
      :ets.delete_object(@new, new)

      case lookup(worker_id) do
        %{owner: ^owner} -> state |> unwatch(worker_id) |> watch(worker_id, owner)
        # Forgotten, or another's by now.
        _other -> state
      end
    end)
  end

  defp watch(state, worker_id, owner) do
    monitor = Process.monitor(owner)

    %{
      state
      | monitors: Map.put(state.monitors, monitor, worker_id),
        workers: Map.put(state.workers, worker_id, monitor)
    }
  end

  defp unwatch(state, worker_id) do
    case Map.pop(state.workers, worker_id) do
      {nil, _workers} ->
        state

      {monitor, workers} ->
        Process.demonitor(monitor, [:flush])
        %{state | workers: workers, monitors: Map.delete(state.monitors, monitor)}
    end
  end

  defp owner_down(state, monitor, owner) do
    case Map.pop(state.monitors, monitor) do
      {nil, _monitors} ->
        state

      {worker_id, monitors} ->
        state = %{state | monitors: monitors, workers: Map.delete(state.workers, worker_id)}

        case lookup(worker_id) do
          %{owner: ^owner} = info -> gather(state, info)
          # Another has that name by now.
          _other -> state
        end
    end
  end

  defp gather(state, %{status: :reserved} = info) do
    {_count, state} = remove_all(state, [info])
    state
  end

  defp gather(state, info) do
    if state.dying == %{}, do: Process.send_after(self(), :end_dying, @gather_ms)
    put_in(state.dying[info.worker_id], {info, state.config.cleanup_max_retries})
  end

  # One helper at a time, for all of them: they share one thread.
  defp end_dying(%{ending: nil, dying: dying} = state) when dying != %{} do
    identities = for {_id, {info, _retries}} <- dying, do: info.identity
    patience = state.config.force_kill_timeout_ms
    helper = spawn_monitor(fn -> Native.process_stop(identities, :sigkill, 0, patience) end)
    %{state | ending: helper}
  end

  defp end_dying(state), do: state

  # Whatever became of the helper, each is asked whether it is gone. The guardian, which watches
  # owners too, ends the rest of the tree.
  defp ended(state) do
    {dying, state} = {state.dying, %{state | ending: nil, dying: %{}}}

    state =
      Enum.reduce(dying, state, fn {id, {info, retries}}, state ->
        case remove_if_gone(state, info) do
          {:ok, state} -> state
          {_error, state} when retries > 0 -> put_in(state.dying[id], {info, retries - 1})
          {error, state} -> give_up(error, state)
        end
      end)

    if state.dying != %{},
      do: Process.send_after(self(), :end_dying, state.config.cleanup_retry_interval_ms)

    state
  end

  # Its entry stays. The auditor comes by again and again.
  defp give_up({:error, error}, state) do
    Logger.error("Snakepit: a worker's owner is gone, but #{Exception.message(error)}")
    state
  end

  defp remove_if_gone(state, info) do
    if gone?(info) do
      remove(state, info)
    else
      error = error(:unregister_worker, :alive, info.worker_id)
      {{:error, %{error | os_pid: info.os_pid}}, state}
    end
  end

  defp remove_all(state, infos) do
    Enum.reduce(infos, {0, state}, fn info, {count, state} ->
      case remove(state, info) do
        {:ok, state} -> {count + 1, state}
        {{:error, _unwritable}, state} -> {count, state}
      end
    end)
  end

  # Order: the ledger first. If that fails the entry stays, and whoever comes by later tries again;
  # and nobody can take the name before the ledger has let go of it.
  defp remove(state, info) do
    case PIDLedger.unregister_process(info.worker_id) do
      :ok ->
        :ets.delete(@table, info.worker_id)
        {:ok, unwatch(state, info.worker_id)}

      {:error, error} ->
        {{:error, %{error | operation: :unregister_worker}}, state}
    end
  end

  defp sweep(state, older_than_ms) do
    limit = now() - older_than_ms

    stale =
      for {_id, %{status: :reserved, since_ms: since} = info} <- list_all_workers(),
          since < limit,
          # Not if it becomes active at this very moment.
          taken?(info.worker_id),
          do: info

    removed = remove_all(state, stale)
    # Those that the ledger could not let go of are taken by nobody, and swept another time.
    for info <- stale,
        lookup(info.worker_id) == info,
        do: :ets.update_element(@table, info.worker_id, {3, new_gate()})

    removed
  end

  # Whoever makes the 0 a 1 has the reservation, to activate or to forget it.
  defp taken?(worker_id) do
    gates = for {_id, _info, gate} <- :ets.lookup(@table, worker_id), do: gate
    Enum.any?(gates, &(:atomics.compare_exchange(&1, 1, 0, 1) == :ok))
  end

  defp new_gate, do: :atomics.new(1, [])

  # In doubt it is there.
  defp gone?(%{identity: nil}), do: true
  defp gone?(%{identity: identity}), do: Native.process_alive(identity) == {:ok, false}

  defp take_reservation(worker_id) do
    case lookup(worker_id) do
      %{status: :reserved} = info ->
        if taken?(worker_id), do: {:ok, info}, else: not_reserved(worker_id)

      _other ->
        not_reserved(worker_id)
    end
  end

  defp not_reserved(worker_id), do: {:error, error(:activate_worker, :not_reserved, worker_id)}

  defp fingerprint(_os_pid, identity) when is_binary(identity), do: {:ok, [identity: identity]}

  defp fingerprint(os_pid, fields) do
    fields = fields || []

    case fields[:identity] do
      nil ->
        case Native.process_lookup(os_pid) do
          {:ok, {_os_pid, identity}} -> {:ok, [identity: identity] ++ fields}
          {:error, error} -> {:error, Error.from_native(:activate_worker, error)}
        end

      _identity ->
        {:ok, fields}
    end
  end

  defp lookup(worker_id) do
    case :ets.lookup(@table, worker_id) do
      [{_id, info, _gate}] -> info
      [] -> nil
    end
  end

  defp check_id!(id) when is_binary(id) and id != "" do
    if String.contains?(id, <<0>>), do: bad_id!(id)
  end

  defp check_id!(id), do: bad_id!(id)

  defp bad_id!(id) do
    raise ArgumentError,
          "expected a worker id to be a non-empty string without NUL, got: #{inspect(id)}"
  end

  defp error(operation, reason, worker_id) do
    %Error{operation: operation, reason: reason, detail: "#{reason}: worker #{worker_id}"}
  end

  defp schedule_watch, do: Process.send_after(self(), :watch_new, @watch_interval_ms)
  defp schedule_sweep, do: Process.send_after(self(), :sweep, @sweep_interval_ms)
  defp now, do: System.monotonic_time(:millisecond)
end
