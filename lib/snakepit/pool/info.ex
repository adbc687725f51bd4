defmodule Snakepit.Pool.Info do
  @moduledoc """
  What `Snakepit.Pool.info/1` returns: a pool at one moment.

    * `:size` - how many workers there are, or should be and are on their way
    * `:min`, `:max` - between which numbers that may change
    * `:idle`, `:busy`, `:starting`, `:stopping`, `:waiting` - how many workers are in each state; those that wait
      are started again later. A worker that is to take the place of another one counts here, and not in `:size`
    * `:queued` - how many callers wait for a worker
    * `:workers` - a `Snakepit.Pool.Info.Worker` for each worker
    * `:last_error` - why a worker of the pool last failed; a `Snakepit.Error`, or `nil`

  """

  alias Snakepit.Error
  alias Snakepit.Pool.{Callers, ProcessRegistry, Slot}

  defmodule Worker do
    @moduledoc """
    A worker in a `Snakepit.Pool.Info`: its id, the BEAM process and the pid of the OS process if there are any,
    its state, how often it was lent, how often a worker in its place was started again, and why that last failed.
    """

    @enforce_keys [:id, :state, :restarts]
    defstruct [:id, :pid, :os_pid, :state, :restarts, :last_error, requests: 0]

    @type state :: :starting | :idle | :busy | :stopping | :waiting

    @type t :: %__MODULE__{
            id: String.t(),
            pid: pid() | nil,
            os_pid: pos_integer() | nil,
            state: state(),
            requests: non_neg_integer(),
            restarts: non_neg_integer(),
            last_error: Error.t() | nil
          }
  end

  @enforce_keys [:size, :min, :max, :queued, :workers]
  defstruct [
    :size,
    :min,
    :max,
    :queued,
    :workers,
    :last_error,
    idle: 0,
    busy: 0,
    starting: 0,
    stopping: 0,
    waiting: 0
  ]

  @type t :: %__MODULE__{
          size: non_neg_integer(),
          min: non_neg_integer(),
          max: pos_integer(),
          idle: non_neg_integer(),
          busy: non_neg_integer(),
          starting: non_neg_integer(),
          stopping: non_neg_integer(),
          waiting: non_neg_integer(),
          queued: non_neg_integer(),
          workers: [Worker.t()],
          last_error: Error.t() | nil
        }

  # Of a `Snakepit.Pool.Roster`.
  @doc false
  def new(pool) do
    slots = pool.slots |> Map.values() |> Enum.sort_by(& &1.number)
    workers = Enum.map(slots, &worker/1)

    info = %__MODULE__{
      size: pool.members,
      min: pool.limits.min,
      max: pool.limits.max,
      queued: Callers.count(pool.callers),
      workers: workers,
      last_error: pool.last_error
    }

    struct!(info, Enum.frequencies_by(workers, & &1.state))
  end

  defp worker(slot) do
    %Worker{
      id: slot.id,
      pid: slot.pid,
      os_pid: os_pid(slot.id),
      state: if(Slot.coming?(slot), do: :starting, else: slot.state),
      requests: slot.requests,
      restarts: slot.restarts,
      last_error: slot.last_error
    }
  end

  defp os_pid(id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, info} -> info.os_pid
      {:error, _none} -> nil
    end
  end
end
