defmodule Snakepit.Pool.Slot do
  @moduledoc false

  # One of a pool's places for a worker: which worker has it, in which state that is, and how often it has
  # failed.

  # A worker that was ready for this long was no failure to start.
  @stable_ms 10_000
  @first_delay_ms 100
  @longest_delay_ms 30_000

  @enforce_keys [:number, :id]
  defstruct [
    :number,
    :id,
    :pid,
    :monitor,
    :ready_at,
    # The reason that the worker has sent; the monitor may have been set too late to get it.
    :ended,
    :last_error,
    :lease,
    state: :starting,
    failures: 0,
    restarts: 0,
    # Whether its process was lost, and the worker is starting another while somebody has it.
    lost?: false,
    # What to do when it is given back, or has ended: `:restart` or `:remove`.
    leaving: nil
  ]

  @type t :: %__MODULE__{state: :starting | :idle | :busy | :waiting | :stopping}

  @doc "Notes that the slot has a process, known by its worker."
  def occupied(%__MODULE__{} = slot, pid), do: %{slot | pid: pid, monitor: Process.monitor(pid)}

  @doc "Notes that the worker can be used."
  def ready(%__MODULE__{} = slot, now), do: %{slot | state: :idle, ready_at: now}

  @doc "Notes that the worker has ended unexpectedly."
  def failed(%__MODULE__{} = slot, error, now) do
    stable? = slot.ready_at != nil and now - slot.ready_at >= @stable_ms

    %{
      vacant(slot)
      | failures: if(stable?, do: 1, else: slot.failures + 1),
        restarts: slot.restarts + 1,
        last_error: error
    }
  end

  @doc "Empties the slot."
  def vacant(%__MODULE__{} = slot) do
    %{
      slot
      | pid: nil,
        monitor: nil,
        lease: nil,
        ready_at: nil,
        ended: nil,
        lost?: false,
        state: :waiting
    }
  end

  @doc "Returns how long to wait before the next attempt. The first one is immediate while the budget lasts."
  def delay(%__MODULE__{failures: failures}, budget?) do
    cond do
      budget? and failures <= 1 -> 0
      failures > 10 -> @longest_delay_ms
      true -> min(@first_delay_ms * Integer.pow(2, max(failures, 1) - 1), @longest_delay_ms)
    end
  end
end
