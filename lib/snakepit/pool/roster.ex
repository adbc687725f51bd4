defmodule Snakepit.Pool.Roster do
  @moduledoc false

  # What a pool knows and decides: its places for workers, its callers, and which caller has which worker. It
  # has no process, no clock and no messages. Functions take an event and the time, and return a roster; what is
  # to be done is in its `:actions`, for `Snakepit.Pool.Server`.
  #
  #   `Lending`   who gets which worker, and who waits
  #   `Staffing`  a slot from its launch to the end of its worker, and what follows a failure
  #   `Sizing`    when the pool grows and shrinks, and when a worker is exchanged for a new one
  #
  # Two things hold after every event. While a worker is idle, nobody waits who could have it. And a worker is
  # idle, or has one lease, or is not ready.

  alias Snakepit.Error
  alias Snakepit.Pool.{Callers, Keys, Slot}

  @enforce_keys [:limits, :prefix, :keys]
  defstruct [
    :limits,
    # What the workers' ids begin with.
    :prefix,
    :keys,
    :last_error,
    # When workers are measured next; `nil` while they are being measured, or never are.
    :measure_at,
    # When something happens by time alone, or before that.
    due: :infinity,
    # The number of the next slot that is added.
    next: 1,
    # The number of the last caller that came, or worker that became idle.
    turn: 0,
    slots: %{},
    # Pairs of turn and number of the idle slots.
    idle: :gb_sets.empty(),
    callers: %Callers{},
    # The numbers of slots by their leases.
    leases: %{},
    # The numbers of slots that wait for their launch, and of those that wait to be exchanged.
    pending: :queue.new(),
    worn: :queue.new(),
    # Counted, as all slots would have to be looked at for each caller that waits.
    members: 0,
    coming: 0,
    launching: 0,
    exchanging: 0,
    # When workers were restarted; the latest first, and no more than the budget.
    restarts: [],
    actions: []
  ]

  @type action ::
          {:launch, pos_integer(), String.t()}
          | {:stop, pos_integer()}
          | {:lend, Callers.Caller.t(), pid()}
          | {:refuse, Callers.Caller.t(), :queue_full | :worker_busy}
          | {:wait, Callers.Caller.t()}
          | {:warm_up, pos_integer(), pid()}
          | {:cancel_warm_up, pos_integer()}
          | {:measure, [{pos_integer(), String.t(), pid()}]}
          | {:recycled, String.t(), reason :: atom()}

  @type t :: %__MODULE__{
          limits: map(),
          prefix: String.t(),
          keys: Keys.t(),
          last_error: Error.t() | nil,
          measure_at: integer() | nil,
          due: integer() | :infinity,
          slots: %{pos_integer() => Slot.t()},
          leases: %{reference() => pos_integer()},
          restarts: [integer()],
          actions: [action()]
        }

  @doc "Returns a roster without slots. See `Snakepit.Pool.Options.limits/1`."
  @spec new(map(), String.t()) :: t()
  def new(limits, prefix),
    do: %__MODULE__{limits: limits, prefix: prefix, keys: Keys.new(limits.max_keys)}

  @doc "Returns what is to be done, in its order, and the roster without it."
  @spec take_actions(t()) :: {[action()], t()}
  def take_actions(%__MODULE__{actions: []} = roster), do: {[], roster}
  def take_actions(roster), do: {Enum.reverse(roster.actions), %{roster | actions: []}}

  @doc "Adds an action."
  @spec act(t(), action()) :: t()
  def act(roster, action), do: %{roster | actions: [action | roster.actions]}

  @doc "Stores a slot. The idle ones are in `:idle`, with the turn that they have, and no others."
  @spec put(t(), Slot.t()) :: t()
  def put(roster, %Slot{number: number} = slot) do
    old = roster.slots[number]
    roster = roster |> count(old, -1) |> count(slot, 1)
    %{roster | slots: Map.put(roster.slots, number, slot)}
  end

  @doc "Removes a slot."
  @spec delete(t(), Slot.t()) :: t()
  def delete(roster, %Slot{number: number}) do
    roster = count(roster, roster.slots[number], -1)
    %{roster | slots: Map.delete(roster.slots, number)}
  end

  defp count(roster, nil, _by), do: roster

  defp count(roster, slot, by) do
    member = if Slot.member?(slot), do: by, else: 0

    %{
      roster
      | members: roster.members + member,
        coming: roster.coming + if(Slot.coming?(slot), do: member, else: 0),
        launching: roster.launching + if(slot.state == :launching, do: by, else: 0),
        exchanging: roster.exchanging + if(slot.replaces, do: by, else: 0),
        idle: idle(roster.idle, slot, by)
    }
  end

  defp idle(idle, %Slot{state: :idle} = slot, 1), do: :gb_sets.add({slot.turn, slot.number}, idle)

  defp idle(idle, %Slot{state: :idle} = slot, -1),
    do: :gb_sets.del_element({slot.turn, slot.number}, idle)

  defp idle(idle, _slot, _by), do: idle

  @doc "Notes that something happens at that time. An atom is no time, and greater than any."
  @spec due(t(), integer() | :infinity | nil) :: t()
  def due(%__MODULE__{due: due} = roster, at) when at < due, do: %{roster | due: at}
  def due(roster, _later), do: roster

  @doc "Returns a time so much later. No time is after `:infinity`."
  @spec later(integer(), timeout()) :: integer() | :infinity
  def later(_now, :infinity), do: :infinity
  def later(now, ms), do: now + ms

  @doc "Returns the slot of the worker with that id, or `nil`."
  @spec slot_by_id(t(), term()) :: Slot.t() | nil
  def slot_by_id(roster, id) when is_binary(id) do
    with ^id <- "#{roster.prefix}-#{number(id)}", do: roster.slots[number(id)], else: (_ -> nil)
  end

  def slot_by_id(_roster, _no_id), do: nil

  defp number(id) do
    case id |> String.split("-") |> List.last() |> Integer.parse() do
      {number, ""} -> number
      _none -> nil
    end
  end

  @doc "Returns how many workers of the pool can be used or are being used."
  @spec ready(t()) :: non_neg_integer()
  def ready(roster), do: count_members(roster, &Slot.ready?/1)

  @doc "Returns whether all workers that there should be are ready."
  @spec ready?(t()) :: boolean()
  def ready?(roster),
    do:
      roster.coming == 0 and roster.members >= roster.limits.min and
        ready(roster) == roster.members

  @doc "Returns whether a worker's launch is still awaited."
  @spec launching?(t()) :: boolean()
  def launching?(roster), do: roster.launching > 0 or not :queue.is_empty(roster.pending)

  defp count_members(roster, fun),
    do: Enum.count(roster.slots, fn {_number, slot} -> Slot.member?(slot) and fun.(slot) end)
end
