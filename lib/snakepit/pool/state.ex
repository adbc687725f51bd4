defmodule Snakepit.Pool.State do
  @moduledoc false

  # What the process of a pool knows: its places for workers, its callers, and which caller has which worker.

  alias Snakepit.{Config, Error, Launch}
  alias Snakepit.Pool.{Callers, Progress, Slot}

  @enforce_keys [:supervisor, :worker, :prefix, :size, :max_restarts, :max_ms, :next, :progress]
  defstruct [
    :supervisor,
    # The options of each worker, without its id.
    :worker,
    # What their ids begin with.
    :prefix,
    :size,
    :max_restarts,
    :max_ms,
    # The number of the next slot that is added.
    :next,
    :progress,
    :last_error,
    # When workers were restarted, by the monotonic clock; the latest first, and no more than the budget.
    restarts: [],
    slots: %{},
    # The numbers of slots by what a message names: a worker's pid, a worker's id.
    pids: %{},
    ids: %{},
    # The numbers of idle slots.
    idle: :queue.new(),
    callers: %Callers{},
    # The numbers of slots by the monitors of the callers that have their workers.
    leases: %{},
    # Callers of `await_ready/2`.
    awaiting: %{}
  ]

  @type t :: %__MODULE__{
          supervisor: pid(),
          worker: keyword(),
          prefix: String.t(),
          size: pos_integer(),
          max_restarts: pos_integer(),
          max_ms: pos_integer(),
          next: pos_integer(),
          progress: Progress.t(),
          last_error: Error.t() | nil,
          restarts: [integer()],
          slots: %{pos_integer() => Slot.t()},
          pids: %{pid() => pos_integer()},
          ids: %{String.t() => pos_integer()},
          idle: :queue.queue(pos_integer()),
          callers: Callers.t(),
          leases: %{reference() => pos_integer()},
          awaiting: %{reference() => GenServer.from()}
        }

  @doc "Returns the state of a pool without slots."
  @spec new(map(), pid()) :: t()
  def new(opts, supervisor) do
    %__MODULE__{
      supervisor: supervisor,
      worker: opts.worker,
      prefix: opts.id || prefix(opts.name),
      size: opts.size,
      max_restarts: opts.max_restarts || max(opts.size, 3),
      max_ms: opts.max_seconds * 1_000,
      next: opts.size + 1,
      progress: Progress.start(Config.current())
    }
  end

  defp prefix(nil), do: Launch.unique_id("pool")
  defp prefix(name) when is_atom(name), do: inspect(name)
  defp prefix(_name), do: prefix(nil)

  @doc "Stores a slot under its number and its worker's pid. The queue has every idle slot once, and no other."
  @spec put_slot(t(), Slot.t()) :: t()
  def put_slot(state, slot) do
    was_idle? = match?(%Slot{state: :idle}, state.slots[slot.number])
    leaves? = was_idle? and slot.state not in [:idle, :busy]
    idle = if leaves?, do: :queue.delete(slot.number, state.idle), else: state.idle
    pids = if slot.pid, do: Map.put(state.pids, slot.pid, slot.number), else: state.pids
    %{state | slots: Map.put(state.slots, slot.number, slot), pids: pids, idle: idle}
  end

  @doc "Returns the slot of the worker with that id, or `nil`."
  @spec slot_by_id(t(), String.t()) :: Slot.t() | nil
  def slot_by_id(state, id),
    do: with(number when number != nil <- state.ids[id], do: state.slots[number])

  @doc "Returns how many workers can be used or are being used."
  @spec ready(t()) :: non_neg_integer()
  def ready(state),
    do: Enum.count(state.slots, fn {_number, slot} -> slot.state in [:idle, :busy] end)

  @doc "Returns how many workers are starting."
  @spec starting(t()) :: non_neg_integer()
  def starting(state),
    do: Enum.count(state.slots, fn {_number, slot} -> slot.state == :starting end)
end
