defmodule Snakepit.Pool.Slot do
  @moduledoc false

  # One of a pool's places for a worker: which worker has it, in which state that is, and how often it has
  # failed.
  #
  #     pending → launching → starting → warming → idle ⇄ busy
  #        ↑                                         ↓
  #     waiting, after a failure  ←────────────  stopping

  # A worker that was ready for this long was no failure to start.
  @stable_ms 10_000
  @first_delay_ms 100
  @longest_delay_ms 30_000

  @enforce_keys [:number, :id]
  defstruct [
    :number,
    :id,
    :pid,
    :ready_at,
    # The reason that the worker has sent; its monitor may have been set too late to get it.
    :ended,
    :last_error,
    :lease,
    # Until when a launch or a warm-up may take, or a failed one waits.
    :due,
    :idle_since,
    # Among the idle ones: the higher, the later it was given back.
    :turn,
    # Why another is to take its place, and the slot of that one.
    :worn,
    :replaced_by,
    # The slot whose place it takes when it is ready.
    :replaces,
    state: :pending,
    requests: 0,
    failures: 0,
    restarts: 0,
    # Its process was lost, and the worker is starting another while somebody has it.
    lost?: false,
    # That other process was not warmed up.
    cold?: false,
    # What to do when it is given back, or has ended: `:restart` or `:remove`.
    leaving: nil
  ]

  @type state ::
          :pending | :launching | :starting | :warming | :idle | :busy | :waiting | :stopping
  @type t :: %__MODULE__{state: state()}

  @doc "Notes that the worker can be used."
  @spec ready(t(), integer()) :: t()
  def ready(%__MODULE__{} = slot, now),
    do: %{slot | state: :idle, due: nil, cold?: false, ready_at: slot.ready_at || now}

  @doc "Notes that the worker has ended unexpectedly."
  @spec failed(t(), Snakepit.Error.t(), integer()) :: t()
  def failed(%__MODULE__{} = slot, error, now) do
    stable? = slot.ready_at != nil and now - slot.ready_at >= @stable_ms

    %{
      vacant(slot)
      | failures: if(stable?, do: 1, else: slot.failures + 1),
        restarts: slot.restarts + 1,
        last_error: error
    }
  end

  @doc "Empties the slot. What is known of its worker does not hold for the next one."
  @spec vacant(t()) :: t()
  def vacant(%__MODULE__{} = slot) do
    kept = Map.take(slot, [:id, :number, :failures, :restarts, :last_error, :replaces, :leaving])
    struct!(%__MODULE__{number: slot.number, id: slot.id, state: :waiting}, kept)
  end

  @doc "Returns how long to wait before the next attempt. The first one is immediate while the budget lasts."
  @spec delay(t(), boolean()) :: non_neg_integer()
  def delay(%__MODULE__{failures: failures}, budget?) do
    cond do
      budget? and failures <= 1 -> 0
      failures > 10 -> @longest_delay_ms
      true -> min(@first_delay_ms * Integer.pow(2, max(failures, 1) - 1), @longest_delay_ms)
    end
  end

  @doc "Returns whether it counts towards the size of the pool."
  @spec member?(t()) :: boolean()
  def member?(%__MODULE__{leaving: leaving, replaces: replaces}),
    do: leaving != :remove and replaces == nil

  @doc "Returns whether a worker is on its way, and nobody can have it yet."
  @spec coming?(t()) :: boolean()
  def coming?(%__MODULE__{state: state}),
    do: state in [:pending, :launching, :starting, :warming]

  @doc "Returns whether somebody has the worker or could have it."
  @spec ready?(t()) :: boolean()
  def ready?(%__MODULE__{state: state}), do: state in [:idle, :busy]
end
