defmodule Snakepit.HeartbeatMonitor do
  @moduledoc """
  Asks a worker's process for a sign of life, and ends the worker when there is none.

  Workers with the option `:heartbeat` have one of these.

  | option | meaning (default) |
  |---|---|
  | `:ping_interval` | milliseconds from one ping to the next (2000) |
  | `:timeout_threshold` | how long a pong may take (10000) |
  | `:max_missed_heartbeats` | that many misses in a row are the end (3) |

  No pong within the threshold is a miss, and the next ping follows at once. Any pong resets the count.
  At most one ping is in flight, so that a slow process is not buried in them. A process that stops
  answering is found after `timeout_threshold * max_missed_heartbeats`, plus `ping_interval` if it
  stopped right after a pong. Its worker exits with `:heartbeat_timeout` then, and takes the tree
  along.

  A pause of the BEAM is not held against the worker: if this process notices the end of a threshold
  too late, the pong may be waiting where nobody has looked yet, and it gets another threshold.

  ## The protocol

  The process finds the number of a connected socket in `SNAKEPIT_LIFELINE_FD`. Over it comes

      PING:<ts>\\n

  to be answered with the same `<ts>` and the process's own time in milliseconds:

      PONG:<ts>:<now>\\n

  With that time, the latency is known whenever the pong is looked at, which need not be before the next
  ping. A process that has none, or not this machine's, may answer with anything in its place; its
  pongs are looked for a moment after each ping, which costs the BEAM more.

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

  With the worker's option `:ping`, a function takes the place of ping and pong: `true`, `:ok` and
  `{:ok, _}` are signs of life. Anything else, or an exception, is none, and the function is called again
  after `ping_interval`. It runs in a process of its own, and may hang.

  ## One process for all pings

  Monitors do not ping by themselves: one process does it for all of them, which costs a fraction of the
  processor time. If it dies, another one takes its place, pings all workers, and counts nothing as missed.
  Handlers of the heartbeat events of `Snakepit.Telemetry` run in that process, so a handler that blocks
  holds up all heartbeats.
  """

  alias Snakepit.HeartbeatMonitor.{Health, Server}
  alias Snakepit.Run

  @defaults [
    worker: nil,
    worker_id: nil,
    os_pid: nil,
    socket: nil,
    ping: nil,
    patient: false,
    ping_interval: 2_000,
    timeout_threshold: 10_000,
    max_missed_heartbeats: 3
  ]

  @doc "For a supervisor, with the options of `start_link/1`."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts), do: %{id: __MODULE__, start: {__MODULE__, :start_link, [opts]}}

  @doc """
  Starts a monitor that watches over `:worker`, a BEAM process, which gets an exit signal with the
  reason `:heartbeat_timeout` in the end. Workers start their own; this one is for those who need
  another.

  Required are `:worker`, `:worker_id`, and `:ping` or `:socket`, a connected lifeline that the caller
  owns. The rest are the options above.
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts = check!(Keyword.validate!(opts, @defaults))
    # Raises if Snakepit is not started: nobody would ping.
    Run.current!()

    with {:ok, monitor} <- GenServer.start_link(Server, Map.new(opts)) do
      # Order: it must own the socket before it has it pinged, so that the socket is closed with it.
      if opts[:socket],
        do: :ok = :socket.setopt(opts[:socket], {:otp, :controlling_process}, monitor)

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

  defp check!(opts) do
    for key <- [:ping_interval, :timeout_threshold, :max_missed_heartbeats],
        value = opts[key],
        not (is_integer(value) and value > 0) do
      raise ArgumentError,
            "expected #{inspect(key)} to be a positive integer, got: #{inspect(value)}"
    end

    unless is_pid(opts[:worker]) do
      raise ArgumentError, "expected :worker to be a pid, got: #{inspect(opts[:worker])}"
    end

    if opts[:socket] == nil and not (is_function(opts[:ping], 0) or is_function(opts[:ping], 1)) do
      raise ArgumentError,
            "expected :ping to be a function of no or one argument, got: #{inspect(opts[:ping])}"
    end

    opts
  end
end
