defmodule Snakepit.Pool.Server do
  @moduledoc false

  # The process of a pool: messages, monitors and timers around a `Snakepit.Pool.Roster`, which decides. What a
  # pool promises is described in `Snakepit.Pool`.
  #
  # The workers are children of a supervisor of the pool's own, which starts and ends them. It restarts none. A
  # worker checks its options and launches its process by itself, so neither this process nor the supervisor waits
  # for a launch, whatever it hangs on.

  use GenServer

  alias Snakepit.{Error, Launch, Config, ProcessLabel, Telemetry, Worker}

  alias Snakepit.Pool.{
    Directory,
    Info,
    Lending,
    Memory,
    Options,
    Progress,
    Roster,
    Sizing,
    Staffing,
    WarmUp
  }

  alias Snakepit.Pool.Callers.Caller

  @enforce_keys [:label, :supervisor, :worker, :warm_up, :progress, :roster]
  defstruct [
    :label,
    :supervisor,
    # The options of each worker, without its id.
    :worker,
    :warm_up,
    :progress,
    :roster,
    # When the timer fires by which things happen, and the timer.
    :armed,
    :timer,
    # The process that measures the workers now.
    :measuring,
    # The numbers of slots by their workers.
    pids: %{},
    # Timers of the callers that wait, by their leases.
    timers: %{},
    # Processes that warm up workers, by the numbers of their slots.
    warm_ups: %{},
    # Callers of `await_ready/2`, and of `start_link/1`.
    awaiting: %{},
    starting: []
  ]

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)
    label = opts.name || opts.id
    ProcessLabel.set({Snakepit.Pool, label})
    {:ok, supervisor} = DynamicSupervisor.start_link(strategy: :one_for_one)

    id = opts.id || prefix(opts.name)
    Directory.enter(id, opts.adapter)

    state = %__MODULE__{
      label: label || self(),
      supervisor: supervisor,
      worker: opts.worker,
      warm_up: opts.warm_up,
      progress: Progress.start(Config.current()),
      roster: Roster.new(Options.limits(opts), id)
    }

    {:ok, state, {:continue, :start}}
  end

  defp prefix(nil), do: Launch.unique_id("pool")
  defp prefix(name) when is_atom(name), do: inspect(name)
  defp prefix(_name), do: prefix(nil)

  @impl true
  def handle_continue(:start, state),
    do: {:noreply, update(state, Sizing.start(state.roster, now()))}

  @impl true
  def handle_call({:checkout, timeout, key, affinity}, {pid, _tag} = from, state) do
    caller = %Caller{
      lease: Process.monitor(pid),
      from: from,
      key: key,
      affinity: affinity,
      timeout: timeout
    }

    {:noreply, update(state, Lending.checkout(state.roster, caller, now()))}
  end

  def handle_call(:info, _from, state), do: {:reply, Info.new(state.roster), state}

  def handle_call({:restart, worker, force?}, _from, %{roster: roster} = state) do
    number = if is_pid(worker), do: state.pids[worker]
    slot = if number, do: roster.slots[number], else: Roster.slot_by_id(roster, worker)

    if slot do
      {:reply, :ok, update(state, Staffing.leave(roster, slot, :restart, force?, now()))}
    else
      detail = "no worker #{inspect(worker)} in this pool"
      {:reply, {:error, %Error{operation: :restart, reason: :not_found, detail: detail}}, state}
    end
  end

  def handle_call({:resize, min, max}, _from, state),
    do: {:reply, :ok, update(state, Sizing.resize(state.roster, min, max, now()))}

  def handle_call({:await_ready, timeout}, from, state) do
    reference = make_ref()
    if timeout != :infinity, do: Process.send_after(self(), {:not_ready, reference}, timeout)
    {:noreply, announce(put_in(state.awaiting[reference], from))}
  end

  def handle_call(:await_launches, from, state),
    do: {:noreply, announce(%{state | starting: [from | state.starting]})}

  @impl true
  def handle_cast({:checkin, lease}, state), do: {:noreply, returned(state, lease)}

  @impl true
  def handle_info({Worker, pid, news}, state) do
    case state.pids do
      %{^pid => number} -> {:noreply, update(state, hear(news, state.roster, number, now()))}
      _gone -> {:noreply, state}
    end
  end

  def handle_info({:DOWN, lease, :process, pid, reason}, state) do
    cond do
      is_map_key(state.pids, pid) ->
        {number, pids} = Map.pop(state.pids, pid)

        {:noreply,
         update(%{state | pids: pids}, Staffing.down(state.roster, number, reason, now()))}

      is_map_key(state.roster.leases, lease) ->
        {:noreply, returned(state, lease)}

      true ->
        {:noreply, elem(drop(state, lease), 1)}
    end
  end

  def handle_info(:due, state) do
    state = %{state | armed: nil, timer: nil}
    {:noreply, update(state, Sizing.tick(state.roster, now()))}
  end

  def handle_info({:give_up, lease}, state) do
    {caller, state} = drop(state, lease)
    if caller, do: refuse(caller, :timeout, "no worker was free in time#{because(state)}")
    {:noreply, state}
  end

  def handle_info({:not_ready, reference}, state) do
    {from, awaiting} = Map.pop(state.awaiting, reference)

    if from do
      detail = "not every worker was ready in time#{because(state)}"
      error = %Error{operation: :await_ready, reason: :timeout, detail: detail}
      GenServer.reply(from, {:error, error})
    end

    {:noreply, %{state | awaiting: awaiting}}
  end

  def handle_info({WarmUp, pid, number, result}, state) do
    case state.warm_ups do
      %{^number => ^pid} ->
        state = %{state | warm_ups: Map.delete(state.warm_ups, number)}
        {:noreply, update(state, Staffing.warmed(state.roster, number, result, now()))}

      _canceled ->
        {:noreply, state}
    end
  end

  def handle_info({Memory, pid, measures}, %{measuring: pid} = state),
    do: {:noreply, measured(state, measures)}

  def handle_info({:EXIT, pid, _reason}, %{measuring: pid} = state),
    do: {:noreply, measured(state, [])}

  def handle_info({:EXIT, supervisor, reason}, %{supervisor: supervisor} = state),
    do: {:stop, reason, state}

  def handle_info(:progress, state),
    do: {:noreply, show_progress(state, state.roster.coming == 0)}

  def handle_info(_other, state), do: {:noreply, state}

  # All at once: the supervisor tells all of its children before it waits for the first.
  @impl true
  def terminate(_reason, state) do
    Directory.leave()
    Progress.end_line(state.progress)
    # Order: before their workers end under them.
    for {_number, pid} <- state.warm_ups, do: Process.exit(pid, :kill)
    Supervisor.stop(state.supervisor, :shutdown, :infinity)
  catch
    # It has gone first, and taken the workers along.
    :exit, _reason -> :ok
  end

  defp hear({:launched, _id}, roster, number, now), do: Staffing.launched(roster, number, now)
  defp hear({:ready, _id}, roster, number, now), do: Staffing.ready(roster, number, now)
  defp hear({:lost, _id}, roster, number, now), do: Staffing.lost(roster, number, now)

  defp hear({:ended, _id, reason}, roster, number, now),
    do: Staffing.ended(roster, number, reason, now)

  defp returned(state, lease) do
    Process.demonitor(lease, [:flush])
    update(state, Lending.checkin(state.roster, lease, now()))
  end

  defp drop(state, lease) do
    Process.demonitor(lease, [:flush])
    {caller, roster} = Lending.drop(state.roster, lease)
    {caller, cancel(%{state | roster: roster}, lease)}
  end

  defp measured(state, measures) do
    state = %{state | measuring: nil}
    update(state, Sizing.measured(state.roster, measures, now()))
  end

  # Does what was decided.
  defp update(state, roster) do
    {actions, roster} = Roster.take_actions(roster)
    actions |> Enum.reduce(%{state | roster: roster}, &carry_out/2) |> arm() |> announce()
  end

  defp carry_out({:lend, caller, worker}, state) do
    GenServer.reply(caller.from, {:ok, worker, caller.lease})
    cancel(state, caller.lease)
  end

  defp carry_out({:wait, %{timeout: :infinity}}, state), do: state

  defp carry_out({:wait, %{lease: lease, timeout: timeout}}, state) do
    timer = Process.send_after(self(), {:give_up, lease}, timeout)
    %{state | timers: Map.put(state.timers, lease, timer)}
  end

  defp carry_out({:refuse, caller, why}, state) do
    Process.demonitor(caller.lease, [:flush])
    refuse(caller, :busy, busy(why, state))
    state
  end

  defp carry_out({:launch, number, id}, state) do
    opts = [id: id] ++ state.worker

    spec = %{
      Worker.child_spec(opts)
      | start: {Worker, :start_link, [opts, self()]},
        restart: :temporary
    }

    {:ok, pid} = DynamicSupervisor.start_child(state.supervisor, spec)
    Process.monitor(pid)
    roster = Staffing.occupied(state.roster, number, pid)
    %{state | roster: roster, pids: Map.put(state.pids, pid, number)}
  end

  # Not through the supervisor, which would wait for it and keep others from starting.
  defp carry_out({:stop, number}, state) do
    Process.exit(state.roster.slots[number].pid, :shutdown)
    state
  end

  defp carry_out({:warm_up, number, pid}, state),
    do: put_in(state.warm_ups[number], WarmUp.start(state.warm_up, number, pid))

  defp carry_out({:cancel_warm_up, number}, state) do
    {pid, warm_ups} = Map.pop(state.warm_ups, number)
    if pid, do: Process.exit(pid, :kill)
    %{state | warm_ups: warm_ups}
  end

  defp carry_out({:measure, workers}, state), do: %{state | measuring: Memory.measure(workers)}

  defp carry_out({:recycled, id, reason}, state) do
    metadata = %{pool: state.label, worker_id: id, reason: reason}
    Telemetry.execute([:snakepit, :pool, :recycled], %{count: 1}, metadata)
    state
  end

  defp cancel(%{timers: timers} = state, lease) when is_map_key(timers, lease) do
    {timer, timers} = Map.pop(timers, lease)
    Process.cancel_timer(timer)
    %{state | timers: timers}
  end

  defp cancel(state, _lease), do: state

  # One timer for all that happens by time alone. One that is too early does no harm.
  defp arm(%{roster: %{due: due}, armed: armed} = state) when due >= armed or due == :infinity,
    do: state

  defp arm(%{roster: %{due: due}} = state) do
    if state.timer, do: Process.cancel_timer(state.timer)
    %{state | armed: due, timer: Process.send_after(self(), :due, due, abs: true)}
  end

  # Order: before anybody hears that all are ready, who may have something to say then.
  defp announce(%{progress: %{shown?: true}, roster: %{coming: 0}} = state),
    do: state |> show_progress(true) |> tell()

  defp announce(state), do: tell(state)

  defp tell(%{awaiting: awaiting, starting: []} = state) when awaiting == %{}, do: state

  defp tell(%{roster: roster} = state) do
    state = if Roster.launching?(roster), do: state, else: reply(state, :starting, state.starting)

    if state.awaiting != %{} and Roster.ready?(roster),
      do: reply(state, :awaiting, Map.values(state.awaiting)),
      else: state
  end

  defp reply(state, :starting, callers), do: %{all_ok(state, callers) | starting: []}
  defp reply(state, :awaiting, callers), do: %{all_ok(state, callers) | awaiting: %{}}

  defp all_ok(state, callers) do
    for from <- callers, do: GenServer.reply(from, :ok)
    state
  end

  defp show_progress(%{roster: roster} = state, settled?) do
    size = max(roster.members, roster.limits.min)
    %{state | progress: Progress.show(state.progress, Roster.ready(roster), size, settled?)}
  end

  defp refuse(caller, reason, detail) do
    error = %Error{operation: :with_worker, reason: reason, detail: detail}
    GenServer.reply(caller.from, {:error, error})
  end

  defp busy(:queue_full, state) do
    "#{state.roster.limits.max_queue} callers wait already, which is the pool's :max_queue: try again later, " <>
      "or start the pool with more workers"
  end

  defp busy(:worker_busy, _state),
    do: "the worker of this key is in use: try again later, or wait for it with affinity: :strict"

  defp because(%{roster: %{last_error: nil}}), do: ""

  defp because(%{roster: %{last_error: error}}),
    do: "; the last failure: #{Exception.message(error)}"

  defp now, do: System.monotonic_time(:millisecond)
end
