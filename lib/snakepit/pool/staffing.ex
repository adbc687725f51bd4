defmodule Snakepit.Pool.Staffing do
  @moduledoc false

  # A slot from the launch of its worker to its end, and what follows a failure. Pure: see
  # `Snakepit.Pool.Roster`.

  import Snakepit.Pool.Roster, only: [act: 2, delete: 2, due: 2, later: 2, put: 2]

  alias Snakepit.Error
  alias Snakepit.Pool.{Lending, Roster, Sizing, Slot}

  @doc "Adds a slot, perhaps for a worker that takes the place of another's, and launches its worker when it may."
  @spec add(Roster.t(), pos_integer() | nil) :: Roster.t()
  def add(roster, replaces \\ nil) do
    number = roster.next
    slot = %Slot{number: number, id: "#{roster.prefix}-#{number}", replaces: replaces}
    pend(%{roster | next: number + 1}, slot)
  end

  defp pend(roster, slot) do
    roster = put(roster, %{slot | state: :pending, due: nil})
    %{roster | pending: :queue.in(slot.number, roster.pending)}
  end

  @doc "Launches those that wait for it, as many at a time as there may be."
  @spec launch(Roster.t(), integer()) :: Roster.t()
  def launch(%{limits: limits} = roster, now) do
    with true <- roster.launching < limits.launches,
         {{:value, number}, pending} <- :queue.out(roster.pending) do
      roster = %{roster | pending: pending}

      case roster.slots[number] do
        %Slot{state: :pending} = slot ->
          at = now + limits.launch_timeout

          roster
          |> put(%{slot | state: :launching, due: at})
          |> due(at)
          |> act({:launch, number, slot.id})
          |> launch(now)

        _removed ->
          launch(roster, now)
      end
    else
      _nothing_to_launch -> roster
    end
  end

  @doc "Notes the BEAM process of the worker of a slot."
  @spec occupied(Roster.t(), pos_integer(), pid()) :: Roster.t()
  def occupied(roster, number, pid), do: put(roster, %{roster.slots[number] | pid: pid})

  @doc "Notes that a worker has its OS process."
  @spec launched(Roster.t(), pos_integer(), integer()) :: Roster.t()
  def launched(roster, number, now) do
    case roster.slots[number] do
      %Slot{state: :launching} = slot ->
        roster |> put(%{slot | state: :starting, due: nil}) |> launch(now)

      # It took so long that others were not to wait for it, or is to end.
      _other ->
        roster
    end
  end

  @doc "Notes that a worker is ready by its own account."
  @spec ready(Roster.t(), pos_integer(), integer()) :: Roster.t()
  def ready(roster, number, now) do
    case roster.slots[number] do
      %Slot{state: state} = slot when state in [:launching, :starting] ->
        roster |> warm_up(slot, now) |> launch(now)

      %Slot{lost?: true} = slot ->
        put(roster, %{slot | lost?: false, cold?: roster.limits.warm_up?, ready_at: now})

      _leaving ->
        roster
    end
  end

  @doc "Has a worker warmed up, if workers are."
  @spec warm_up(Roster.t(), Slot.t(), integer()) :: Roster.t()
  def warm_up(%{limits: %{warm_up?: false}} = roster, slot, now), do: usable(roster, slot, now)

  def warm_up(%{limits: limits} = roster, slot, now) do
    at = later(now, limits.warm_up_timeout)

    roster
    |> put(%{slot | state: :warming, due: at})
    |> due(at)
    |> act({:warm_up, slot.number, slot.pid})
  end

  @doc "Notes how the warm-up of a worker has ended."
  @spec warmed(Roster.t(), pos_integer(), :ok | {:error, Error.t()}, integer()) :: Roster.t()
  def warmed(roster, number, result, now) do
    case {roster.slots[number], result} do
      {%Slot{state: :warming} = slot, :ok} -> usable(roster, slot, now)
      {%Slot{state: :warming} = slot, {:error, error}} -> stop(roster, %{slot | ended: error})
      {_ended, _result} -> roster
    end
  end

  # Order: before it is offered. Those who wait for the worker whose place it takes may be the first to have it.
  defp usable(roster, %Slot{replaces: old} = slot, now) do
    slot = Slot.ready(%{slot | replaces: nil}, now)

    roster
    |> put(%{slot | state: :starting})
    |> Sizing.relieve(old, now)
    |> due(later(slot.ready_at, roster.limits.max_age))
    |> Lending.offer(slot, now)
  end

  @doc "Notes that a worker has lost its process, and starts another by itself."
  @spec lost(Roster.t(), pos_integer(), integer()) :: Roster.t()
  def lost(roster, number, now) do
    case roster.slots[number] do
      %Slot{state: :busy} = slot ->
        roster |> put(%{afresh(slot) | lost?: true}) |> Lending.release(number, now)

      %Slot{state: :idle} = slot ->
        roster |> put(%{afresh(slot) | state: :starting}) |> Lending.release(number, now)

      %Slot{state: :warming} = slot ->
        roster |> put(%{slot | state: :starting, due: nil}) |> cool(slot)

      _starting_or_leaving ->
        roster
    end
  end

  # What wore the worker out has gone with its process.
  defp afresh(slot),
    do: %{slot | requests: 0, ready_at: nil, worn: if(slot.replaced_by, do: slot.worn)}

  defp cool(roster, %Slot{state: :warming, number: number}),
    do: act(roster, {:cancel_warm_up, number})

  defp cool(roster, _slot), do: roster

  @doc "Notes that a worker is about to end: nobody gets it any more. Its slot is free when it has ended."
  @spec ended(Roster.t(), pos_integer(), term(), integer()) :: Roster.t()
  def ended(roster, number, reason, now) do
    case roster.slots[number] do
      %Slot{ended: nil} = slot ->
        roster
        |> put(%{slot | ended: reason, state: :stopping, due: nil})
        |> cool(slot)
        |> Lending.release(number, now)
        |> launch(now)

      _known ->
        roster
    end
  end

  @doc "Notes that a worker has ended."
  @spec down(Roster.t(), pos_integer(), term(), integer()) :: Roster.t()
  def down(roster, number, reason, now) do
    slot = roster.slots[number]
    roster = %{roster | leases: Map.delete(roster.leases, slot.lease)}

    roster
    |> cool(slot)
    |> gone(slot, slot.ended || reason, now)
    |> Lending.release(number, now)
    |> Sizing.exchange(now)
    |> launch(now)
  end

  defp gone(roster, %Slot{leaving: :remove} = slot, _reason, _now), do: delete(roster, slot)

  defp gone(roster, %Slot{leaving: :restart} = slot, _reason, _now) do
    vacant = %{Slot.vacant(slot) | leaving: nil, restarts: slot.restarts + 1}
    Sizing.succeed(roster, slot) || pend(roster, vacant)
  end

  defp gone(roster, slot, reason, now) do
    error = Error.from_exit(reason)
    failed = Slot.failed(slot, error, now)
    %{max_restarts: most, max_restarts_ms: ms} = roster.limits
    recent = Enum.filter(roster.restarts, &(now - &1 < ms))
    roster = %{roster | restarts: [now | Enum.take(recent, most)], last_error: error}

    Sizing.succeed(roster, slot) ||
      again(roster, failed, Slot.delay(failed, length(recent) < most), now)
  end

  defp again(roster, slot, 0, _now), do: pend(roster, slot)

  defp again(roster, slot, delay, now),
    do: roster |> put(%{slot | due: now + delay}) |> due(now + delay)

  @doc "Does what is to be done with a slot by now: its launch or warm-up took too long, or it has waited long enough."
  @spec overdue(Roster.t(), Slot.t(), integer()) :: Roster.t()
  def overdue(roster, slot, now) do
    case slot do
      %Slot{due: due} when due == nil or due > now ->
        roster

      # Others do not wait for it any longer.
      %Slot{state: :launching} ->
        put(roster, %{slot | state: :starting, due: nil})

      %Slot{state: :warming} ->
        stop(roster, %{slot | ended: too_long(slot, roster.limits)})

      %Slot{state: :waiting} ->
        if Sizing.surplus?(roster, slot), do: delete(roster, slot), else: pend(roster, slot)
    end
  end

  defp too_long(slot, limits) do
    detail = "the warm-up took longer than #{limits.warm_up_timeout} ms, its :warm_up_timeout"
    %Error{operation: :warm_up, reason: :timeout, worker_id: slot.id, detail: detail}
  end

  @doc "Has a slot restarted or removed, at once or when its worker is given back."
  @spec leave(Roster.t(), Slot.t(), :restart | :remove, boolean(), integer()) :: Roster.t()
  def leave(roster, %Slot{leaving: :remove} = slot, :restart, force?, now),
    do: leave(roster, slot, :remove, force?, now)

  def leave(roster, %Slot{} = slot, how, force?, now) do
    case slot do
      %Slot{state: state} when state in [:waiting, :pending] and how == :remove ->
        delete(roster, slot)

      %Slot{state: :pending} ->
        roster

      %Slot{state: :waiting} ->
        pend(roster, slot)

      %Slot{state: :busy} when not force? ->
        put(roster, %{slot | leaving: how})

      _other ->
        stop(roster, %{slot | leaving: how})
    end
    |> Lending.release(slot.number, now)
    |> Sizing.exchange(now)
    |> launch(now)
  end

  @doc "Has a worker end. Nobody gets it any more."
  @spec stop(Roster.t(), Slot.t()) :: Roster.t()
  def stop(roster, slot) do
    roster
    |> cool(roster.slots[slot.number])
    |> put(%{slot | state: :stopping, due: nil})
    |> act({:stop, slot.number})
  end
end
