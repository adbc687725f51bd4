defmodule Snakepit.Guardian.State do
  @moduledoc false

  # What `Snakepit.Guardian.Server` knows. `Children` and `Events` change it.

  alias Snakepit.Guardian.{Child, Watch}
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
    # Children that wait at the gate, and callers that wait for one.
    ready: :queue.new(),
    waiting: :queue.new(),
    # Children that somebody has, by id, and their ids by the monitor of their owner.
    children: %{},
    owners: %{},
    # Callers that wait for an answer of the guardian's which does not say for whom it is.
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
          ready: :queue.queue({pos_integer(), pos_integer(), binary()}),
          waiting: :queue.queue({map(), GenServer.from(), reference()}),
          children: %{pos_integer() => Child.t()},
          owners: %{reference() => pos_integer()},
          asking: %{
            info: [GenServer.from()],
            stop_all: [{GenServer.from(), tuple()}]
          }
        }
end
