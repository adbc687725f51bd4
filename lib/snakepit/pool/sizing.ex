defmodule Snakepit.Pool.Sizing do
  @moduledoc false

  # When a pool grows and shrinks, and when a worker is exchanged for a new one. Pure: see
  # `Snakepit.Pool.Roster`.

  import Snakepit.Pool.Roster, only: [act: 2, delete: 2, due: 2, later: 2, put: 2]

  alias Snakepit.Pool.{Callers, Roster, Slot, Staffing}

  # How many workers have a second one started beside them at a time: one of so many. All of a pool reach their
  # age together, and to exchange them together would take twice the memory.
  @exchanged_of 10

  @doc "Adds the first workers."
  @spec start(Roster.t(), integer()) :: Roster.t()
  def start(%{limits: limits} = roster, now) do
    at = if limits.max_memory != :infinity, do: now + limits.memory_interval
    %{roster | measure_at: at} |> due(at) |> fill(now)
  end

  # Until there are as many as there should be.
  defp fill(%{limits: limits} = roster, now) do
    missing = limits.min - roster.members
    if missing > 0, do: add(roster, missing, now), else: roster
  end

  @doc "Adds a worker for each caller that waits for any, as far as that is allowed and none is coming."
  @spec grow(Roster.t(), integer()) :: Roster.t()
  def grow(roster, now), do: grow(roster, Callers.count(roster.callers, :any), now)

  @doc "As `grow/2`, for so many callers."
  @spec grow(Roster.t(), non_neg_integer(), integer()) :: Roster.t()
  def grow(%{limits: limits} = roster, wanted, now) do
    missing = min(wanted - roster.coming, limits.max - roster.members)
    if missing > 0, do: add(roster, missing, now), else: roster
  end

  defp add(roster, count, now) do
    Enum.reduce(1..count, roster, fn _one, roster -> Staffing.add(roster) end)
    |> Staffing.launch(now)
  end

  @doc "Returns whether a slot without a worker is not needed now."
  @spec surplus?(Roster.t(), Slot.t()) :: boolean()
  def surplus?(roster, slot) do
    Slot.member?(slot) and roster.members > roster.limits.min and
      Callers.count(roster.callers) == 0
  end

  @doc "Changes how many workers there may be. Surplus ones leave; those go first that nobody has."
  @spec resize(Roster.t(), non_neg_integer(), pos_integer(), integer()) :: Roster.t()
  def resize(roster, min, max, now) do
    roster = %{roster | limits: %{roster.limits | min: min, max: max}}
    members = for {_number, slot} <- roster.slots, Slot.member?(slot), do: slot

    order = [:waiting, :pending, :launching, :starting, :warming, :idle, :stopping, :busy]
    use = fn slot -> {Enum.find_index(order, &(&1 == slot.state)), -slot.number} end
    surplus = members |> Enum.sort_by(use) |> Enum.take(max(length(members) - max, 0))

    surplus
    |> Enum.reduce(roster, &remove(&2, &1.number, now))
    |> fill(now)
    |> grow(now)
    |> tick(now)
  end

  # With the one that was to take its place.
  defp remove(roster, number, now) do
    slot = roster.slots[number]
    roster = Staffing.leave(roster, %{slot | replaced_by: nil}, :remove, false, now)

    case roster.slots[slot.replaced_by] do
      nil -> roster
      other -> Staffing.leave(roster, other, :remove, false, now)
    end
  end

  @doc "Does what is to be done by now, and notes when there is something to do again."
  @spec tick(Roster.t(), integer()) :: Roster.t()
  def tick(roster, now) do
    roster =
      Enum.reduce(Map.keys(roster.slots), roster, fn number, roster ->
        roster |> Staffing.overdue(roster.slots[number], now) |> wear(number, now)
      end)

    roster = roster |> shrink(now) |> measure(now) |> Staffing.launch(now)
    Enum.reduce(roster.slots, due(%{roster | due: :infinity}, roster.measure_at), &note_due/2)
  end

  defp note_due({_number, slot}, roster) do
    limits = roster.limits
    idle? = slot.state == :idle and roster.members > limits.min
    aging? = Slot.ready?(slot) and slot.worn == nil and slot.leaving == nil

    roster
    |> due(slot.due)
    |> due(if(idle?, do: later(slot.idle_since, limits.idle_timeout)))
    |> due(if(aging? and slot.ready_at, do: later(slot.ready_at, limits.max_age)))
  end

  # The one that is idle for longest first.
  defp shrink(%{limits: limits} = roster, now) do
    with true <- roster.members > limits.min and not :gb_sets.is_empty(roster.idle),
         {_turn, number} = :gb_sets.smallest(roster.idle),
         true <- later(roster.slots[number].idle_since, limits.idle_timeout) <= now do
      roster |> remove(number, now) |> shrink(now)
    else
      _none_is_idle_for_long -> roster
    end
  end

  @doc "Notes that a worker is to be exchanged, if it was used for long or often enough."
  @spec wear(Roster.t(), pos_integer(), integer()) :: Roster.t()
  def wear(%{limits: limits} = roster, number, now) do
    case roster.slots[number] do
      %Slot{worn: nil, leaving: nil, requests: requests} = slot
      when requests >= limits.max_requests ->
        worn(roster, slot, :max_requests, now)

      %Slot{worn: nil, leaving: nil, ready_at: ready_at} = slot when is_integer(ready_at) ->
        if later(ready_at, limits.max_age) <= now,
          do: worn(roster, slot, :max_age, now),
          else: roster

      _not_yet ->
        roster
    end
  end

  @doc "Notes how much memory workers use: pairs of a worker and bytes, by slots."
  @spec measured(Roster.t(), [{pos_integer(), pid(), non_neg_integer()}], integer()) :: Roster.t()
  def measured(%{limits: limits} = roster, measures, now) do
    at = now + limits.memory_interval

    Enum.reduce(measures, due(%{roster | measure_at: at}, at), fn {number, pid, bytes}, roster ->
      case roster.slots[number] do
        %Slot{pid: ^pid, worn: nil, leaving: nil, state: state} = slot
        when bytes > limits.max_memory and state in [:idle, :busy] ->
          worn(roster, slot, :max_memory, now)

        _enough_room_or_another ->
          roster
      end
    end)
  end

  defp measure(%{measure_at: at} = roster, now) when is_integer(at) and at <= now do
    workers =
      for {number, slot} <- roster.slots, Slot.ready?(slot), do: {number, slot.id, slot.pid}

    act(%{roster | measure_at: nil}, {:measure, workers})
  end

  defp measure(roster, _now), do: roster

  defp worn(roster, slot, reason, now) do
    roster = put(roster, %{slot | worn: reason})
    exchange(%{roster | worn: :queue.in(slot.number, roster.worn)}, now)
  end

  @doc """
  Starts second workers beside those that are to be exchanged, as many as there may be. The old one is used until the
  new one is ready, so nobody waits for it.
  """
  @spec exchange(Roster.t(), integer()) :: Roster.t()
  def exchange(roster, now) do
    with true <- roster.exchanging < max(div(roster.members, @exchanged_of), 1),
         {{:value, number}, worn} <- :queue.out(roster.worn) do
      roster = %{roster | worn: worn}

      case roster.slots[number] do
        %Slot{worn: reason, replaced_by: nil, leaving: nil} = slot when reason != nil ->
          roster
          |> put(%{slot | replaced_by: roster.next})
          |> Staffing.add(number)
          |> Staffing.launch(now)
          |> exchange(now)

        _gone ->
          exchange(roster, now)
      end
    else
      _not_now -> roster
    end
  end

  @doc "Has the worker leave whose place another has taken, and exchanges the next one."
  @spec relieve(Roster.t(), pos_integer() | nil, integer()) :: Roster.t()
  def relieve(roster, nil, _now), do: roster

  def relieve(roster, number, now) do
    case roster.slots[number] do
      %Slot{} = slot ->
        roster
        |> act({:recycled, slot.id, slot.worn})
        |> Staffing.leave(%{slot | replaced_by: nil}, :remove, false, now)

      nil ->
        roster
    end
    |> exchange(now)
  end

  @doc """
  Has the worker that was to take the place of an ended one take it now. Returns `nil` if there is none.
  """
  @spec succeed(Roster.t(), Slot.t()) :: Roster.t() | nil
  def succeed(roster, slot) do
    case roster.slots[slot.replaced_by] do
      %Slot{} = other -> roster |> delete(slot) |> put(%{other | replaces: nil})
      nil -> nil
    end
  end
end
