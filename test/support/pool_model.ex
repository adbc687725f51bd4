defmodule Snakepit.Test.PoolModel do
  @moduledoc """
  A pool without processes: the decisions of `Snakepit.Pool.Roster` beside a world that does what they ask for, in
  any order and at any speed. The world knows who has which worker by itself, and `check!/1` compares.

  Callers and workers are integers and references here. A worker begins in `:launching`, goes on to `:running`, and is
  `:ready` by its own account, until it is `:told` to end or has `:gone` by itself.
  """

  import ExUnit.Assertions

  alias Snakepit.Pool.{Lending, Options, Roster, Sizing, Slot, Staffing}
  alias Snakepit.Pool.Callers.Caller

  @prefix "model"

  defstruct [
    :roster,
    now: 0,
    # By their pids, which are numbers here: the slot and the state of each worker that there is.
    workers: %{},
    next_pid: 1,
    # By lease: what a caller asked for; who waits, in the order in which they came; and who has which worker.
    asked: %{},
    waiting: [],
    lent: %{},
    warm_ups: %{},
    measured: nil,
    # The lines of the roster before the event.
    before: %{},
    # How often each thing happened, so that a test can tell that it has tried it.
    seen: %{}
  ]

  @doc "A pool with these options that has just been started."
  def new(opts) do
    limits = opts |> Keyword.put_new(:worker, cmd: ["true"]) |> Options.new!() |> Options.limits()
    %__MODULE__{roster: Roster.new(limits, @prefix)} |> event(&Sizing.start(&1, &2))
  end

  @doc "Somebody asks for a worker. Returns the lease that it would get."
  def ask(model, opts \\ []) do
    lease = make_ref()
    caller = struct!(%Caller{lease: lease, from: lease}, opts)
    model = %{model | asked: Map.put(model.asked, lease, caller)}
    {lease, event(model, &Lending.checkout(&1, caller, &2))}
  end

  @doc "A caller gives its worker back."
  def give_back(model, lease) do
    %{model | lent: Map.delete(model.lent, lease)}
    |> event(&Lending.checkin(&1, lease, &2))
  end

  @doc "A caller that waits gives up."
  def give_up(model, lease) do
    {caller, roster} = Lending.drop(model.roster, lease)
    assert caller.lease == lease
    check!(%{model | roster: roster, waiting: List.delete(model.waiting, lease)})
  end

  @doc "A worker has its process, and then is ready."
  def launched(model, pid), do: news(model, pid, :running, &Staffing.launched/3)
  def ready(model, pid), do: news(model, pid, :ready, &Staffing.ready/3)

  @doc "A worker loses its process, and begins again."
  def lost(model, pid), do: news(model, pid, :running, &Staffing.lost/3)

  @doc "A worker says that it is about to end, as one does that has failed."
  def ended(model, pid),
    do: news(model, pid, :gone, &Staffing.ended(&1, &2, {:exit_status, 1}, &3))

  @doc "A worker has ended."
  def down(model, pid) do
    {worker, workers} = Map.pop!(model.workers, pid)
    reason = if worker.state == :told, do: :shutdown, else: {:exit_status, 1}
    event(%{model | workers: workers}, &Staffing.down(&1, worker.number, reason, &2))
  end

  @doc "A warm-up has ended."
  def warmed(model, number, result) do
    %{model | warm_ups: Map.delete(model.warm_ups, number)}
    |> event(&Staffing.warmed(&1, number, result, &2))
  end

  @doc "Time passes, and what is due is done."
  def pass(model, ms) do
    model = %{model | now: model.now + ms}
    if model.roster.due <= model.now, do: event(model, &Sizing.tick/2), else: model
  end

  @doc "The pool is resized, or one of its workers replaced."
  def resize(model, min, max), do: event(model, &Sizing.resize(&1, min, max, &2))

  def restart(model, number, force?) do
    slot = model.roster.slots[number]
    event(model, &Staffing.leave(&1, slot, :restart, force?, &2))
  end

  @doc "The workers are measured, if they are to be; `bytes` says how much each uses."
  def measure(%{measured: nil} = model, _bytes), do: model

  def measure(%{measured: workers} = model, bytes) do
    measures = for {number, _id, pid} <- workers, do: {number, pid, bytes.(pid)}
    event(%{model | measured: nil}, &Sizing.measured(&1, measures, &2))
  end

  @doc "Goes on without new callers, until nobody has or wants a worker and all that should be ready is."
  def settle(model, rounds \\ 10_000) do
    step =
      Enum.find_value(model.workers, fn
        {pid, %{state: :launching}} -> &launched(&1, pid)
        {pid, %{state: :running}} -> &ready(&1, pid)
        {pid, %{state: state}} when state in [:told, :gone] -> &down(&1, pid)
        {_pid, _ready} -> nil
      end) ||
        Enum.find_value(model.warm_ups, fn {number, _pid} -> &warmed(&1, number, :ok) end) ||
        Enum.find_value(model.lent, fn {lease, _pid} -> &give_back(&1, lease) end)

    cond do
      rounds == 0 ->
        flunk("the pool does not come to rest: #{inspect(model.roster, limit: 200)}")

      step ->
        settle(step.(model), rounds - 1)

      rest?(model) ->
        model

      is_integer(model.roster.due) ->
        settle(pass(model, max(model.roster.due - model.now, 1)), rounds - 1)

      true ->
        flunk("nothing will ever happen: #{inspect(model.roster, limit: 200)}")
    end
  end

  defp rest?(model), do: model.waiting == [] and Roster.ready?(model.roster)

  defp news(model, pid, state, fun) do
    worker = model.workers[pid]
    model = put_in(model.workers[pid].state, state)
    event(model, &fun.(&1, worker.number, &2))
  end

  defp event(model, fun) do
    {actions, roster} = Roster.take_actions(fun.(model.roster, model.now))
    model = %{model | before: model.roster.callers.waiting, roster: roster}
    actions |> Enum.reduce(model, &carry_out/2) |> check!()
  end

  defp carry_out(action, model) do
    model = update_in(model.seen, &Map.update(&1, elem(action, 0), 1, fn n -> n + 1 end))
    act(action, model)
  end

  defp act({:lend, caller, pid}, model) do
    lease = caller.lease
    # Never twice, and only one that can be used.
    refute pid in Map.values(model.lent)
    assert %{state: :ready} = model.workers[pid]
    refute model.warm_ups[model.workers[pid].number]
    assert is_map_key(model.asked, lease)
    assert_first(model, caller, pid)

    %{
      model
      | lent: Map.put(model.lent, lease, pid),
        asked: Map.delete(model.asked, lease),
        waiting: List.delete(model.waiting, lease)
    }
  end

  defp act({:wait, caller}, model),
    do: %{model | waiting: model.waiting ++ [caller.lease]}

  defp act({:refuse, caller, why}, model) do
    assert is_map_key(model.asked, caller.lease)
    refute caller.lease in model.waiting
    limits = model.roster.limits

    case why do
      :queue_full -> assert length(model.waiting) >= limits.max_queue
      :worker_busy -> assert caller.affinity == :fail_fast
    end

    %{model | asked: Map.delete(model.asked, caller.lease)}
  end

  defp act({:launch, number, id}, model) do
    assert id == "#{@prefix}-#{number}"
    pid = model.next_pid

    %{launches: most, launch_timeout: timeout} = model.roster.limits
    awaited? = &(&1.state == :launching and &1.since + timeout > model.now)
    assert Enum.count(Map.values(model.workers), awaited?) < most
    refute Enum.any?(model.workers, fn {_pid, worker} -> worker.number == number end)
    worker = %{number: number, state: :launching, since: model.now}

    %{
      model
      | next_pid: pid + 1,
        workers: Map.put(model.workers, pid, worker),
        roster: Staffing.occupied(model.roster, number, pid)
    }
  end

  defp act({:stop, number}, model) do
    pid = model.roster.slots[number].pid
    assert is_map_key(model.workers, pid)
    put_in(model.workers[pid].state, :told)
  end

  defp act({:warm_up, number, pid}, model) do
    assert %{state: :ready, number: ^number} = model.workers[pid]
    put_in(model.warm_ups[number], pid)
  end

  defp act({:cancel_warm_up, number}, model),
    do: %{model | warm_ups: Map.delete(model.warm_ups, number)}

  defp act({:measure, workers}, model), do: %{model | measured: workers}

  defp act({:recycled, _id, reason}, model),
    do: update_in(model.seen, &Map.update(&1, reason, 1, fn n -> n + 1 end))

  # In the order in which they came: only those may be passed who wait for another worker.
  defp assert_first(model, caller, pid) do
    for lease <- Enum.take_while(model.waiting, &(&1 != caller.lease)) do
      assert model.asked[lease].affinity == :strict
      # Before or after the event; not at all, if it has served it too.
      lines = for waiting <- [model.before, model.roster.callers.waiting], do: waiting[lease]

      passable? = fn line ->
        line == nil or elem(line, 0) not in [:any, model.workers[pid].number]
      end

      assert Enum.any?(lines, passable?)
    end
  end

  @doc "Fails unless all that must hold does."
  def check!(model) do
    roster = model.roster
    slots = Map.values(roster.slots)
    idle = for %Slot{state: :idle} = slot <- slots, do: slot
    busy = for %Slot{state: :busy} = slot <- slots, do: slot

    # Who has what is the same on both sides, but for workers that are about to end under their callers.
    leases = Map.new(busy, &{&1.lease, &1.pid})
    assert Map.take(model.lent, Map.keys(leases)) == leases
    for {lease, number} <- roster.leases, do: assert(roster.slots[number].lease == lease)

    # Nobody who waits is forgotten, or waits for one who is idle.
    assert Enum.sort(Map.keys(roster.callers.waiting)) == Enum.sort(model.waiting)
    anyone? = :gb_trees.size(roster.callers.lines.any) > 0
    refute anyone? and idle != []

    for {line, _tree} <- roster.callers.lines,
        line != :any,
        do: assert(roster.slots[line].state != :idle)

    # What is counted is what is there.
    members = Enum.filter(slots, &Slot.member?/1)
    assert roster.members == length(members)
    assert roster.coming == Enum.count(members, &Slot.coming?/1)
    assert roster.launching == Enum.count(slots, &(&1.state == :launching))
    assert roster.exchanging == Enum.count(slots, &(&1.replaces != nil))

    assert :gb_sets.to_list(roster.idle) ==
             Enum.sort(for slot <- idle, do: {slot.turn, slot.number})

    # Between its bounds, and never far beyond them with those that take the places of others.
    assert roster.members in roster.limits.min..roster.limits.max

    for %Slot{replaces: old} = slot when old != nil <- slots,
        slot.leaving == nil,
        do: assert(roster.slots[old].replaced_by == slot.number)

    # Each worker has a slot, and a worker that nobody has is in its state.
    for {pid, worker} <- model.workers, do: assert(roster.slots[worker.number].pid == pid)

    model
  end
end
