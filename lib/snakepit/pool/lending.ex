defmodule Snakepit.Pool.Lending do
  @moduledoc false

  # Who gets which worker, and who waits. Pure: see `Snakepit.Pool.Roster`.

  import Snakepit.Pool.Roster, only: [act: 2, due: 2, later: 2, put: 2]

  alias Snakepit.Pool.{Callers, Keys, Roster, Sizing, Slot, Staffing}
  alias Snakepit.Pool.Callers.Caller

  @doc "Lends a worker to a caller, has it wait, or refuses it."
  @spec checkout(Roster.t(), Caller.t(), integer()) :: Roster.t()
  def checkout(roster, caller, now) do
    case place(roster, caller) do
      {:lend, number} -> lend(roster, roster.slots[number], caller)
      {:wait, line} -> wait(roster, line, caller, now)
      :refuse -> act(roster, {:refuse, caller, :worker_busy})
      # Those who come after it may find one more.
      :refuse_and_grow -> roster |> act({:refuse, caller, :worker_busy}) |> Sizing.grow(1, now)
    end
  end

  defp place(roster, %Caller{key: nil}), do: any(roster)

  defp place(roster, %Caller{key: key, affinity: affinity}) do
    number = Keys.slot(roster.keys, key)

    case {roster.slots[number], affinity} do
      {%Slot{state: :idle}, _any} -> {:lend, number}
      {%Slot{}, :strict} -> {:wait, number}
      {%Slot{}, :fail_fast} -> :refuse
      {nil, :fail_fast} -> with {:wait, _line} <- any(roster), do: :refuse_and_grow
      {_busy_or_none, _waits} -> any(roster)
    end
  end

  # By turns, if all of them stay. Otherwise the one that was used last, so that others are idle for long enough
  # to be ended.
  defp any(%{idle: idle, limits: %{min: min, max: max}}) do
    cond do
      :gb_sets.is_empty(idle) -> {:wait, :any}
      min == max -> {:lend, elem(:gb_sets.smallest(idle), 1)}
      true -> {:lend, elem(:gb_sets.largest(idle), 1)}
    end
  end

  defp wait(roster, line, caller, now) do
    if admits?(roster) do
      turn = roster.turn + 1
      callers = Callers.add(roster.callers, line, %{caller | turn: turn})
      roster = act(%{roster | turn: turn, callers: callers}, {:wait, caller})
      if line == :any, do: Sizing.grow(roster, now), else: roster
    else
      act(roster, {:refuse, caller, :queue_full})
    end
  end

  # Those for whom a worker is being started, or will be, do not count.
  defp admits?(%{limits: limits} = roster) do
    expected = roster.coming + max(limits.max - roster.members, 0)
    Callers.count(roster.callers) < Roster.later(expected, limits.max_queue)
  end

  defp lend(roster, slot, %Caller{lease: lease} = caller) do
    lent = %{slot | state: :busy, lease: lease, requests: slot.requests + 1}
    roster = act(put(roster, lent), {:lend, caller, slot.pid})

    keys =
      if caller.key == nil,
        do: roster.keys,
        else: Keys.touch(roster.keys, caller.key, slot.number)

    %{roster | leases: Map.put(roster.leases, lease, slot.number), keys: keys}
  end

  @doc "Takes a worker back. Who has that lease is no matter any more."
  @spec checkin(Roster.t(), reference(), integer()) :: Roster.t()
  def checkin(roster, lease, now) do
    {number, leases} = Map.pop(roster.leases, lease)
    roster = %{roster | leases: leases}

    case number && roster.slots[number] do
      %Slot{lease: ^lease, state: :busy} = slot -> returned(roster, %{slot | lease: nil}, now)
      # It ends or has ended, and another may be in its place.
      _other -> roster
    end
  end

  defp returned(roster, %Slot{leaving: nil} = slot, now) do
    cond do
      slot.lost? -> put(roster, %{slot | state: :starting, lost?: false})
      slot.cold? -> Staffing.warm_up(roster, slot, now)
      true -> roster |> offer(slot, now) |> Sizing.wear(slot.number, now)
    end
  end

  defp returned(roster, slot, _now), do: Staffing.stop(roster, slot)

  @doc "Lends a worker that has become free to the first who waits for it, or keeps it idle."
  @spec offer(Roster.t(), Slot.t(), integer()) :: Roster.t()
  def offer(roster, slot, now) do
    case Callers.next(roster.callers, slot.number) do
      :none ->
        keep(roster, slot, now)

      {caller, callers} ->
        roster = %{roster | callers: callers}
        bound = if caller.affinity == :strict, do: Keys.slot(roster.keys, caller.key)

        # While it waited, another caller with the same key got another worker.
        if bound in [nil, slot.number],
          do: lend(roster, slot, caller),
          else: roster |> redirect(caller, bound) |> offer(slot, now)
    end
  end

  defp redirect(roster, caller, bound) do
    case roster.slots[bound] do
      %Slot{state: :idle} = slot -> lend(roster, slot, caller)
      _busy -> %{roster | callers: Callers.add(roster.callers, bound, caller)}
    end
  end

  defp keep(roster, slot, now) do
    turn = roster.turn + 1
    roster = put(%{roster | turn: turn}, %{slot | state: :idle, turn: turn, idle_since: now})

    if roster.members > roster.limits.min,
      do: due(roster, later(now, roster.limits.idle_timeout)),
      else: roster
  end

  @doc "Notes that a worker is not what it was, or will not be for long: keys do not belong to it any more."
  @spec release(Roster.t(), pos_integer(), integer()) :: Roster.t()
  def release(roster, number, now) do
    {waiting, callers} = Callers.take_all(roster.callers, number)
    roster = %{roster | callers: callers, keys: Keys.forget(roster.keys, number)}
    # Order: as they came, so the first of them binds the key, and the others wait for its worker.
    Enum.reduce(waiting, roster, &place_again(&2, &1, now))
  end

  # They wait already, and are not refused because their worker has ended.
  defp place_again(roster, caller, now) do
    case place(roster, caller) do
      {:lend, number} ->
        lend(roster, roster.slots[number], caller)

      {:wait, line} ->
        Sizing.grow(%{roster | callers: Callers.add(roster.callers, line, caller)}, now)
    end
  end

  @doc "Notes that a caller does not wait any more. Returns it, if it did."
  @spec drop(Roster.t(), reference()) :: {Caller.t() | nil, Roster.t()}
  def drop(roster, lease) do
    {caller, callers} = Callers.drop(roster.callers, lease)
    {caller, %{roster | callers: callers}}
  end
end
