defmodule Snakepit.Pool.Server do
  @moduledoc false

  # The process of a pool. It knows the places for workers (`Snakepit.Pool.Slot`), the callers that wait
  # (`Snakepit.Pool.Callers`), and which caller has which worker. `Snakepit.Pool` says what a pool promises.
  #
  # The workers are children of a supervisor of the pool's own, which starts and ends them. It restarts none:
  # this process decides when a worker is started again.

  use GenServer

  import Snakepit.Pool.State, only: [put_slot: 2, ready: 1, slot_by_id: 2, starting: 1]

  alias Snakepit.{Error, ProcessLabel, Worker}
  alias Snakepit.Pool.{Callers, Directory, Info, Progress, Slot, State}

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)
    ProcessLabel.set({Snakepit.Pool, opts[:name] || opts[:id]})
    {:ok, supervisor} = DynamicSupervisor.start_link(strategy: :one_for_one)

    state = State.new(opts, supervisor)
    Directory.enter(state.prefix)
    state = Enum.reduce(1..opts.size, state, &add_slot(&2, &1))
    {:ok, await_launches(state, Map.keys(state.pids))}
  end

  # Until each of the first workers has a process or has ended.
  defp await_launches(state, []), do: state

  defp await_launches(state, [pid | others]) do
    receive do
      {Worker, ^pid, {:launched, _id}} ->
        await_launches(state, others)

      {:DOWN, _monitor, :process, ^pid, reason} ->
        await_launches(down(state, pid, reason), others)
    end
  end

  @impl true
  def handle_call({:checkout, timeout}, from, state),
    do: {:noreply, serve(update_in(state.callers, &Callers.add(&1, from, timeout)))}

  def handle_call(:info, _from, state), do: {:reply, Info.new(state), state}

  def handle_call({:restart, worker, force?}, _from, state) do
    case Map.fetch(if(is_pid(worker), do: state.pids, else: state.ids), worker) do
      {:ok, number} ->
        {:reply, :ok, leave(state, state.slots[number], :restart, force?)}

      :error ->
        detail = "no worker #{inspect(worker)} in this pool"
        {:reply, {:error, %Error{operation: :restart, reason: :not_found, detail: detail}}, state}
    end
  end

  def handle_call({:resize, size}, _from, state), do: {:reply, :ok, resized(state, size)}

  def handle_call({:await_ready, timeout}, from, state) do
    reference = make_ref()
    if timeout != :infinity, do: Process.send_after(self(), {:not_ready, reference}, timeout)
    {:noreply, tell_ready(put_in(state.awaiting[reference], from))}
  end

  @impl true
  def handle_cast({:checkin, lease}, state), do: {:noreply, returned(state, lease)}

  @impl true
  def handle_info({Worker, pid, {:ready, id}}, state) do
    case slot_by_id(state, id) do
      %Slot{state: :starting, pid: ^pid} = slot ->
        {:noreply,
         state
         |> put_slot(Slot.ready(slot, now()))
         |> idle(slot.number)
         |> end_progress()
         |> tell_ready()}

      %Slot{pid: ^pid, lost?: true} = slot ->
        {:noreply, put_slot(state, %{slot | lost?: false})}

      _removed ->
        {:noreply, state}
    end
  end

  # The worker starts its process again by itself. No caller gets it until it is ready.
  def handle_info({Worker, pid, {:lost, id}}, state) do
    case slot_by_id(state, id) do
      %Slot{pid: ^pid, state: :idle} = slot ->
        {:noreply, put_slot(state, %{slot | state: :starting})}

      %Slot{pid: ^pid, state: :busy} = slot ->
        {:noreply, put_slot(state, %{slot | lost?: true})}

      _starting_or_leaving ->
        {:noreply, state}
    end
  end

  # No caller gets it any more. Its slot is free when the worker has ended.
  def handle_info({Worker, pid, {:ended, id, reason}}, state) do
    case slot_by_id(state, id) do
      %Slot{pid: ^pid, ended: nil} = slot ->
        {:noreply, put_slot(state, %{slot | ended: reason, state: :stopping})}

      _known_or_another ->
        {:noreply, state}
    end
  end

  def handle_info({:EXIT, supervisor, reason}, %{supervisor: supervisor} = state),
    do: {:stop, reason, state}

  def handle_info({:DOWN, monitor, :process, pid, reason}, state) do
    cond do
      is_map_key(state.pids, pid) -> {:noreply, down(state, pid, reason)}
      is_map_key(state.leases, monitor) -> {:noreply, returned(state, monitor)}
      true -> {:noreply, %{state | callers: elem(Callers.drop(state.callers, monitor), 1)}}
    end
  end

  def handle_info({:start, number}, state) do
    case state.slots do
      %{^number => %Slot{state: :waiting} = slot} -> {:noreply, start(state, slot)}
      _removed -> {:noreply, state}
    end
  end

  def handle_info({:give_up, monitor}, state) do
    {from, callers} = Callers.drop(state.callers, monitor)

    if from do
      detail = "no worker was free in time#{because(state.last_error)}"
      error = %Error{operation: :with_worker, reason: :timeout, detail: detail}
      GenServer.reply(from, {:error, error})
    end

    {:noreply, %{state | callers: callers}}
  end

  def handle_info({:not_ready, reference}, state) do
    {from, awaiting} = Map.pop(state.awaiting, reference)

    if from do
      detail = "not every worker was ready in time#{because(state.last_error)}"

      GenServer.reply(
        from,
        {:error, %Error{operation: :await_ready, reason: :timeout, detail: detail}}
      )
    end

    {:noreply, %{state | awaiting: awaiting}}
  end

  def handle_info(:progress, state), do: {:noreply, show_progress(state, starting(state) == 0)}

  def handle_info(_other, state), do: {:noreply, state}

  # All at once: the supervisor tells all of its children before it waits for the first.
  @impl true
  def terminate(_reason, state) do
    Directory.leave()
    Progress.end_line(state.progress)
    Supervisor.stop(state.supervisor, :shutdown, :infinity)
  catch
    # It has gone first, and taken the workers along.
    :exit, _reason -> :ok
  end

  # Neither the pool nor its supervisor waits for the guardian: the worker launches its process later, and sends
  # `{:launched, id}` then.
  defp start(state, slot) do
    opts = [id: slot.id] ++ state.worker

    spec = %{
      Worker.child_spec(opts)
      | start: {Worker, :start_link, [opts, self()]},
        restart: :temporary
    }

    {:ok, pid} = DynamicSupervisor.start_child(state.supervisor, spec)
    put_slot(state, Slot.occupied(%{slot | state: :starting}, pid))
  end

  defp down(state, pid, reason) do
    slot = state.slots[state.pids[pid]]
    state = %{state | pids: Map.delete(state.pids, pid)}
    gone(%{state | leases: Map.delete(state.leases, slot.lease)}, slot, slot.ended || reason)
  end

  defp gone(state, %Slot{leaving: :remove} = slot, _reason) do
    %{state | slots: Map.delete(state.slots, slot.number), ids: Map.delete(state.ids, slot.id)}
  end

  defp gone(state, %Slot{leaving: :restart} = slot, _reason),
    do: start(state, %{Slot.vacant(slot) | leaving: nil, restarts: slot.restarts + 1})

  defp gone(state, slot, reason) do
    now = now()
    error = Error.from_exit(reason)
    slot = Slot.failed(slot, error, now)
    recent = Enum.filter(state.restarts, &(now - &1 < state.max_ms))
    budget? = length(recent) < state.max_restarts
    state = %{state | restarts: [now | Enum.take(recent, state.max_restarts)], last_error: error}

    case Slot.delay(slot, budget?) do
      0 ->
        start(state, slot)

      delay ->
        Process.send_after(self(), {:start, slot.number}, delay)
        put_slot(state, slot)
    end
  end

  # Lends idle workers to waiting callers.
  defp serve(state) do
    with {{:value, number}, idle} <- :queue.out(state.idle),
         {monitor, from, callers} <- Callers.next(state.callers) do
      slot = %{state.slots[number] | state: :busy, lease: monitor}
      GenServer.reply(from, {:ok, slot.pid, monitor})

      %{state | idle: idle, callers: callers}
      |> put_slot(slot)
      |> Map.update!(:leases, &Map.put(&1, monitor, number))
      |> serve()
    else
      _nobody_idle_or_waiting -> state
    end
  end

  defp returned(state, lease) do
    {number, leases} = Map.pop(state.leases, lease)
    Process.demonitor(lease, [:flush])
    state = %{state | leases: leases}

    case number && state.slots[number] do
      %Slot{lease: ^lease, state: :busy, leaving: nil, lost?: true} = slot ->
        put_slot(state, %{slot | state: :starting, lease: nil, lost?: false})

      %Slot{lease: ^lease, state: :busy, leaving: nil} = slot ->
        state |> put_slot(%{slot | state: :idle, lease: nil}) |> idle(number)

      %Slot{lease: ^lease, state: :busy} = slot ->
        stop_worker(state, %{slot | lease: nil})

      # It ends or has ended, and another may be in its place.
      _other ->
        state
    end
  end

  defp idle(state, number), do: serve(%{state | idle: :queue.in(number, state.idle)})

  defp leave(state, %Slot{state: :waiting} = slot, :remove, _force?),
    do: gone(state, %{slot | leaving: :remove}, nil)

  defp leave(state, %Slot{state: :waiting} = slot, :restart, _force?), do: start(state, slot)

  defp leave(state, %Slot{state: :busy} = slot, how, false),
    do: put_slot(state, %{slot | leaving: how})

  defp leave(state, slot, how, _force?), do: stop_worker(state, %{slot | leaving: how})

  # Not through the supervisor, which would wait for it and keep others from starting.
  defp stop_worker(state, slot) do
    Process.exit(slot.pid, :shutdown)
    put_slot(state, %{slot | state: :stopping})
  end

  defp resized(%{size: old} = state, new) when new >= old do
    staying = Enum.count(state.slots, fn {_number, slot} -> slot.leaving != :remove end)
    added = if new > staying, do: state.next..(state.next + new - staying - 1), else: []
    state = %{state | size: new, next: state.next + Enum.count(added)}
    Enum.reduce(added, state, &add_slot(&2, &1))
  end

  defp resized(state, new) do
    staying =
      for {_number, %Slot{leaving: leaving} = slot} <- state.slots, leaving != :remove, do: slot

    order = [:waiting, :starting, :idle, :stopping, :busy]

    by_use =
      Enum.sort_by(staying, &{Enum.find_index(order, fn s -> s == &1.state end), -&1.number})

    surplus = Enum.take(by_use, length(staying) - new)
    Enum.reduce(surplus, %{state | size: new}, &leave(&2, &1, :remove, false))
  end

  defp add_slot(state, number) do
    slot = %Slot{number: number, id: "#{state.prefix}-#{number}"}
    start(%{state | ids: Map.put(state.ids, slot.id, number)}, slot)
  end

  # Before anybody hears that all are ready, who may have something to say then.
  defp end_progress(state) do
    if state.progress.shown? and starting(state) == 0,
      do: show_progress(state, true),
      else: state
  end

  defp show_progress(state, settled?) do
    %{state | progress: Progress.show(state.progress, ready(state), state.size, settled?)}
  end

  defp tell_ready(%{awaiting: awaiting} = state) when awaiting == %{}, do: state

  defp tell_ready(state) do
    if ready(state) == map_size(state.slots) do
      for {_reference, from} <- state.awaiting, do: GenServer.reply(from, :ok)
      %{state | awaiting: %{}}
    else
      state
    end
  end

  defp because(nil), do: ""
  defp because(error), do: "; the last failure: #{Exception.message(error)}"

  defp now, do: System.monotonic_time(:millisecond)
end
