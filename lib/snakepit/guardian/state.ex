defmodule Snakepit.Guardian.State do
  @moduledoc false

  # The state of `Snakepit.Guardian.Server`. `Ahead`, `Children` and `Events` change it.

  alias Snakepit.Guardian.{Ahead, Child, Watch}
  alias Snakepit.{OSProcess, Run}

  @enforce_keys [:run, :port, :process, :socket, :watch, :log_level, :grace_ms]
  defstruct [
    :run,
    :port,
    :process,
    :socket,
    :watch,
    :log_level,
    :grace_ms,
    # Children that wait at the gate, see `Ahead`: those that can be had, those that are not recorded and those
    # that are being recorded; and children that are gone, of which the ledger does not know yet.
    ready: :queue.new(),
    unrecorded: [],
    recording: nil,
    gone: [],
    # Callers that wait for a child.
    waiting: :queue.new(),
    # Children that were handed out, by id, and their ids by the monitor of their owner.
    children: %{},
    owners: %{},
    # Callers that wait for an answer of a kind that does not name its caller.
    asking: %{info: [], stop_all: []}
  ]

  @type t :: %__MODULE__{
          run: Run.t(),
          port: port(),
          process: OSProcess.t(),
          socket: binary(),
          watch: Watch.t(),
          log_level: atom(),
          grace_ms: non_neg_integer(),
          ready: :queue.queue(Ahead.child()),
          unrecorded: [Ahead.child()],
          recording: {reference(), [Ahead.child()]} | nil,
          gone: [binary()],
          waiting: :queue.queue({map(), GenServer.from(), reference()}),
          children: %{pos_integer() => Child.t()},
          owners: %{reference() => pos_integer()},
          asking: %{
            info: [GenServer.from()],
            stop_all: [{GenServer.from(), tuple()}]
          }
        }
end
