defmodule Snakepit.Pool.ProcessRegistry.Server do
  @moduledoc false

  # Monitors the owners of workers, ends the processes that they leave behind, and deletes entries whose
  # process is gone. `Snakepit.Pool.ProcessRegistry` says what that promises.

  use GenServer

  require Logger

  alias Snakepit.{AlignedTimer, Config, Native}
  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}
  alias Snakepit.Pool.ProcessRegistry.Table

  # A worker that has not become active by then will not: its owner is stuck.
  @reservation_limit_ms 60_000
  @sweep_interval_ms 5_000
  # Until then an owner that dies is not noticed here. The guardian notices it, and ends its process at
  # once; what is left to do is to forget the worker.
  @watch_interval_ms 1_000
  # Owners often die together. Those that do within this time are dealt with together.
  @gather_ms 5

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: ProcessRegistry)

  @doc "Returns how old a reservation may get, in milliseconds."
  def reservation_limit_ms, do: @reservation_limit_ms

  @impl true
  def init(_opts) do
    Process.flag(:trap_exit, true)
    known = Enum.map(PIDLedger.recall(), &recalled/1)
    Table.new(known)
    schedule_sweep()
    schedule_watch()
    state = %{monitors: %{}, workers: %{}, dying: %{}, ending: nil, config: Config.current()}
    {:ok, Enum.reduce(known, state, &watch(&2, &1.worker_id, &1.owner))}
  end

  @impl true
  def handle_call(:cleanup_dead_workers, _from, state) do
    dead = for {_id, info} <- ProcessRegistry.validate_workers(), do: info
    {:reply, forget_all(dead), state}
  end

  def handle_call({:sweep_reservations, older_than_ms}, _from, state) do
    {:reply, sweep(older_than_ms), state}
  end

  @impl true
  def handle_cast({:watch, worker_id, owner}, state) do
    {:noreply, state |> watch_new() |> unwatch(worker_id) |> watch(worker_id, owner)}
  end

  # Unless another has that name by now, who may be watched already.
  def handle_cast({:forgotten, worker_id}, state) do
    if Table.lookup(worker_id) == nil,
      do: {:noreply, unwatch(state, worker_id)},
      else: {:noreply, state}
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
    sweep(@reservation_limit_ms)
    schedule_sweep()
    {:noreply, state}
  end

  def handle_info(_other, state), do: {:noreply, state}

  # After a crash of this process: the ledger knows the workers, and most of their owners live on.
  defp recalled(record) do
    record
    |> Map.take([:worker_id, :run_id, :status, :os_pid, :pgid, :identity, :command, :spawned_at])
    |> Map.merge(%{owner: owner(record.elixir_pid), since_ms: now()})
  end

  # A process that has ended stands for the owner of a reservation, which is not recorded.
  defp owner(nil), do: spawn(fn -> :ok end)

  defp owner(text) do
    text |> String.to_charlist() |> :erlang.list_to_pid()
  rescue
    # Of another version, or damaged.
    ArgumentError -> owner(nil)
  end

  defp watch_new(state) do
    Enum.reduce(Table.take_new(), state, fn {worker_id, owner}, state ->
      case Table.lookup(worker_id) do
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

        case Table.lookup(worker_id) do
          %{owner: ^owner} = info -> gather(state, info)
          # Another has that name by now.
          _other -> state
        end
    end
  end

  defp gather(state, %{status: :reserved} = info) do
    ProcessRegistry.forget(info)
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

  # Each process is looked up, even if the helper has crashed. The guardian, which monitors owners too, ends the rest of
  # the tree.
  defp ended(state) do
    {dying, state} = {state.dying, %{state | ending: nil, dying: %{}}}

    state =
      Enum.reduce(dying, state, fn {id, {info, retries}}, state ->
        case ProcessRegistry.forget(info) do
          done when done in [:forgotten, :passed] -> state
          {:error, _error} when retries > 0 -> put_in(state.dying[id], {info, retries - 1})
          {:error, error} -> give_up(error, state)
        end
      end)

    if state.dying != %{},
      do: Process.send_after(self(), :end_dying, state.config.cleanup_retry_interval_ms)

    state
  end

  # Its entry stays. The auditor comes by again and again.
  defp give_up(error, state) do
    Logger.error(
      "Snakepit: a worker's owner is gone, but its process is not: #{Exception.message(error)}; " <>
        "the auditor tries again"
    )

    state
  end

  # Not one that becomes active at this very moment.
  defp sweep(older_than_ms), do: forget_all(Table.reserved_before(now() - older_than_ms))

  defp forget_all(infos), do: Enum.count(infos, &(ProcessRegistry.forget(&1) == :forgotten))

  defp schedule_watch, do: schedule(:watch_new, @watch_interval_ms)
  defp schedule_sweep, do: schedule(:sweep, @sweep_interval_ms)

  defp schedule(message, interval_ms),
    do: Process.send_after(self(), message, AlignedTimer.next(interval_ms), abs: true)

  defp now, do: System.monotonic_time(:millisecond)
end
