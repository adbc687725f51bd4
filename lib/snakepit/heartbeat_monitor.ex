defmodule Snakepit.HeartbeatMonitor do
  alias Snakepit.HeartbeatMonitor.{Health, Server}
  alias Snakepit.{Options, Run}

  @schema [
    ping_interval: [
      type: {:milliseconds, 1},
      default: 2_000,
      doc: "from one ping to the next"
    ],
    timeout_threshold: [
      type: {:milliseconds, 1},
      default: 10_000,
      doc: "how long a pong may take"
    ],
    max_missed_heartbeats: [
      type: {:integer, 1, 0x7FFFFFFF},
      default: 3,
      doc: "how many misses in a row end the worker"
    ]
  ]

  @start [
    worker: [type: :pid, required: true, doc: "the BEAM process that is told of the end"],
    worker_id: [type: :text, required: true, doc: "what events call it"],
    ping: [
      type: {:function, [0, 1]},
      default: nil,
      doc: "a function that asks the process, see above; takes the place of a lifeline"
    ],
    socket: [
      type: {:custom, &__MODULE__.socket?/1, "a socket of the module :socket"},
      default: nil,
      doc: "a connected lifeline, which the caller owns and passes on"
    ],
    os_pid: [
      type: {:integer, 1, :infinity},
      default: nil,
      doc: "for a `:ping` of one argument, which gets a map of `:worker_id` and `:os_pid`"
    ],
    patient: [
      type: :boolean,
      default: false,
      doc: "whether the first pong may take any time"
    ]
  ]

  @moduledoc """
  Pings a worker's process, and ends the worker when it does not answer.

  A worker with the option `:heartbeat` has a monitor, with these options:

  #{Options.docs(@schema)}

  No pong within the threshold is a miss, and the next ping follows at once. Any pong resets the count.
  At most one ping is in flight, so that a slow process is not buried in them. A process that stops
  answering is found after `timeout_threshold * max_missed_heartbeats`, plus `ping_interval` if it
  stopped right after a pong. Its worker exits with `:heartbeat_timeout` then, and takes the tree
  along.

  A pause of the BEAM does not count against the worker: if the end of a threshold is noticed too late, the pong may
  have arrived without having been read, and the process gets another threshold.

  ## The protocol

  The process finds the number of a connected socket in `SNAKEPIT_LIFELINE_FD`. Over it comes

      PING:<ts>\\n

  to be answered with the same `<ts>` and the process's own time in milliseconds:

      PONG:<ts>:<now>\\n

  With that time, the latency is known whenever the pong is read, which need not be before the next ping. A process
  without a clock, or with another machine's, may answer with anything in its place. Its pongs are read a moment after
  each ping, which costs the BEAM more.

  When the socket is closed, the BEAM is gone, and the process should go too. All of it in Python:

      import os, socket, threading, time

      def answer():
          lifeline = socket.socket(fileno=int(os.environ["SNAKEPIT_LIFELINE_FD"]))
          for line in lifeline.makefile("r"):
              if line.startswith("PING:"):
                  now = int(time.time() * 1000)
                  lifeline.sendall(f"PONG:{line[5:].strip()}:{now}\\n".encode())
          os._exit(0)

      threading.Thread(target=answer, daemon=True).start()

  The package in `priv/python` does this with more care.

  ## Other transports

  With the worker's option `:ping`, a function takes the place of ping and pong. `true`, `:ok` and `{:ok, _}` count as a
  pong. After anything else, or an exception, the function is called again after `ping_interval`. It runs in a process
  of its own, and may hang.

  ## One process for all pings

  Monitors do not ping by themselves: one process does it for all of them, which costs a fraction of the
  processor time. If it dies, another one takes its place, pings all workers, and counts nothing as missed.
  Handlers of the heartbeat events of `Snakepit.Telemetry` run in that process, so a handler that blocks
  holds up all heartbeats.
  """

  @doc "Returns a child specification, for the options of `start_link/1`."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts), do: %{id: __MODULE__, start: {__MODULE__, :start_link, [opts]}}

  @doc """
  Starts a monitor that watches over `:worker`, a BEAM process, which gets an exit signal with the
  reason `:heartbeat_timeout` in the end. Workers start their own monitor; this function is for other
  processes.

  ## Options

  `:ping` or `:socket`, and beside the options above:

  #{Options.docs(@start)}
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts = Options.validate!(opts, @start ++ @schema)
    # Raises if Snakepit is not started: there is no poller then.
    Run.current!()

    # A lifeline may be given as nothing where there is a `:ping`, and the other way round.
    if opts.socket == nil, do: Options.check!(opts.ping, {:function, [0, 1]}, :ping)

    with {:ok, monitor} <- GenServer.start_link(Server, opts) do
      # Order: it must own the socket before it has it pinged, so that the socket is closed with it.
      if opts.socket,
        do: :ok = :socket.setopt(opts.socket, {:otp, :controlling_process}, monitor)

      GenServer.cast(monitor, :begin)
      {:ok, monitor}
    end
  end

  @doc "Returns how the worker's process answers."
  @spec get_health_status(GenServer.server()) :: Health.t()
  def get_health_status(monitor), do: GenServer.call(monitor, :health)

  @doc "Sends a ping now, unless one is in flight."
  @spec force_ping(GenServer.server()) :: :ok
  def force_ping(monitor), do: GenServer.call(monitor, :force_ping)

  # What workers may be given, and the configuration.
  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  def socket?(socket), do: match?({:"$socket", _reference}, socket)
end
