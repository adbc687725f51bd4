defmodule Snakepit.Worker do
  @moduledoc """
  An OS process as a part of your supervision tree.

      children = [
        {Snakepit.Worker, id: "thumbnails", cmd: ["python3", "thumbnails.py"], heartbeat: true}
      ]

      Supervisor.start_link(children, strategy: :one_for_one)

  The process starts with its worker and ends with it, with everything that it has started itself,
  whatever ends the worker: its supervisor, a crash, `Process.exit(pid, :kill)`, or the death of the
  BEAM. When the process ends first, the worker exits with a reason that says how, and its supervisor
  does what supervisors do.

      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "60"])
      iex> os_pid = Snakepit.Worker.os_pid(worker)
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      true
      iex> Snakepit.Worker.stop(worker)
      :ok
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      false

  ## Options

  | option | meaning (default) |
  |---|---|
  | `:cmd` | `[program \\| args]`, required; no shell is involved |
  | `:id` | worker id, by which it is recorded (generated) |
  | `:name` | a name for the BEAM process, as for `GenServer` |
  | `:env`, `:clear_env`, `:cd`, `:umask` | as for `System.cmd/3`; see `Snakepit.Command` |
  | `:run_id_flag` | such as `"--run-id"`, to put flag and run id at the end of the arguments (`nil`) |
  | `:stdio` | `:tail` (default), `:null`, `:inherit`, `{:file, path}`, or `:pipe` to talk to it |
  | `:packet` | how a `:pipe` is cut into packets: `:raw` (default), `:line`, or 4 bytes of length |
  | `:output` | who gets what it writes: `:quiet` (default), `:logger`, `{:send, pid}`, a function |
  | `:ready` | when it counts as started, see below (`nil`: when it runs) |
  | `:ready_timeout` | how long that may take (15000) |
  | `:stop_signal`, `:stop_timeout`, `:kill_mode` | how it is asked to end, for how long, and who is asked first (`:sigterm`, 2000, `:tree`); see below |
  | `:on_guardian_down` | `:restart` (default) or `:exit`; see below |
  | `:heartbeat` | `true`, `false`, or `:ping_interval`, `:timeout_threshold` and `:max_missed_heartbeats`, see `Snakepit.HeartbeatMonitor` (the configuration's) |
  | `:ping` | a function that asks it for a sign of life, instead of the lifeline |
  | `:user`, `:group`, `:groups`, `:nice`, `:rlimits`, `:oom_score_adj` | who and how much; see `Snakepit.Command` |

  ## Start

  `start_link/1` returns when the process is recorded, has executed its program, and is ready:

    * `{:output, pattern}` - a line of its output contains the string or matches the regex
    * `{:tcp, port}`, `{:unix, path}` - it accepts connections there
    * `:heartbeat` - its first pong has come
    * a function gives `true`, `:ok` or `{:ok, _}`; it is called again and again, without argument or
      with a map of `:id` and `:os_pid`

  If it is not, `start_link/1` gives `{:error, %Snakepit.Error{}}` with the reason and the end of the
  output, and there is no process, entry or connection left.

  ## Output

  By default the end of it is kept for the log, by the guardian, and costs the BEAM nothing. With
  `:output` each line is passed on: to `Logger`, as `{Snakepit.Worker, id, {:output, line}}`, or to a
  function, which is called in the worker; the process waits while it runs. With `stdio: :pipe` there
  is also `write/2` and `request/3`; then standard error is what is kept.

  Streams that pass through the BEAM are sockets. Programs that open `/dev/stdout` or `/dev/stderr` by
  name cannot do that with a socket.

  ## End

  | reason | why |
  |---|---|
  | `:normal` | its status was 0, or `stop/1` |
  | `{:exit_status, status}` | any other status |
  | `{:exit_signal, :sigkill}` | a signal ended it |
  | `:heartbeat_timeout` | it gave no sign of life |
  | `:guardian_down` | the guardian died, and the kernel ended it; only with `on_guardian_down: :exit` |
  | `{:survivors, os_pids}` | it, or what it has started, cannot be ended |

  On `:normal` and `:shutdown` the process gets `:stop_signal` and, after `:stop_timeout`, SIGKILL; on
  any other reason SIGKILL at once. A worker is gone when its tree and its entry are.

  ## When the guardian is lost

  The kernel ends the process then, and the worker starts it again by itself, as soon as there is another
  guardian: the same BEAM process goes on, under its name and in its place, with a new OS process. Its
  connections and its heartbeats are made anew, and it is ready again when `:ready` says so. Requests
  that the old process had not answered fail with `:worker_down`; later ones wait. There is one line in
  the log, and the event `[:snakepit, :process, :restarted]`. If it cannot be started again, the worker
  exits with the `Snakepit.Error` that says why.

  ## Time to end

  `:stop_signal`, `:stop_timeout` and `:kill_mode` hold in every ending, also when the BEAM dies: see
  `Snakepit.Command`. The time is the whole tree's. A worker that gives no `:stop_timeout` has 2000 ms
  when it is stopped itself, and what the configuration says in other endings.
  """

  alias Snakepit.{Error, Guardian, HeartbeatMonitor, Native}
  alias Snakepit.Worker.{Options, Server}

  # What a supervisor waits beyond the grace period: for the tree to vanish after SIGKILL.
  @shutdown_margin_ms 5_000

  @type worker :: GenServer.server()

  @doc "A child specification. Its id is the worker's, or its name."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    timeout = Keyword.get(opts, :stop_timeout, 2_000)

    %{
      id: opts[:id] || opts[:name] || __MODULE__,
      start: {__MODULE__, :start_link, [opts]},
      type: :worker,
      restart: :permanent,
      shutdown: if(is_integer(timeout), do: timeout + @shutdown_margin_ms, else: 5_000)
    }
  end

  @doc """
  Starts a worker and its process; returns when it is ready. Raises `ArgumentError` for options that
  it cannot mean.
  """
  @spec start_link(keyword()) :: {:ok, pid()} | {:error, Error.t() | {:already_started, pid()}}
  def start_link(opts) do
    options = Options.new!(opts)
    GenServer.start_link(Server, options, genserver_options(options))
  end

  # For pools. Returns when the process runs; `owner` hears `{Snakepit.Worker, pid, {:ready, id}}` and
  # `{Snakepit.Worker, pid, {:ended, id, reason}}`.
  @doc false
  def start_link(opts, owner) do
    options = %{Options.new!(opts) | owner: owner}
    GenServer.start_link(Server, options, genserver_options(options))
  end

  @doc "The pid of its OS process."
  @spec os_pid(worker()) :: pos_integer()
  def os_pid(worker), do: GenServer.call(worker, :os_pid)

  @doc """
  What there is to know: `:id`, `:os_pid`, `:cmd`, `:uptime_ms`, and `:heartbeat`, the health that
  `Snakepit.HeartbeatMonitor.get_health_status/1` gives, or `nil`.
  """
  @spec info(worker()) :: map()
  def info(worker) do
    {info, monitor} = GenServer.call(worker, :info)
    Map.put(info, :heartbeat, monitor && HeartbeatMonitor.get_health_status(monitor))
  end

  @doc """
  Ends a worker, and its process with all that it has started; returns when all of it is gone.

  `:signal` and `:timeout_ms` take the place of the worker's `:stop_signal` and `:stop_timeout`. A
  supervisor that restarts its children whatever their reason starts this one again: ask the
  supervisor then.
  """
  @spec stop(worker(), keyword()) :: :ok | {:error, Error.t()}
  def stop(worker, opts \\ []) do
    opts = Keyword.validate!(opts, [:signal, :timeout_ms])
    # Here, and not in the worker, which would end over it.
    Guardian.check_stop!(opts)
    monitor = Process.monitor(worker)

    answer =
      try do
        GenServer.call(worker, {:stop, opts}, :infinity)
      catch
        # It was on its way already.
        :exit, _reason -> :ok
      end

    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> answer))
  end

  @doc "Sends a signal to the process and its group."
  @spec signal(worker(), Native.signal()) :: :ok | {:error, Error.t()}
  def signal(worker, signal) do
    {child, scope} = GenServer.call(worker, :child)
    Guardian.signal(child, signal, scope)
  end

  @doc "The end of what the process has written so far."
  @spec output_tail(worker()) :: {:ok, binary()} | {:error, Error.t()}
  def output_tail(worker) do
    case GenServer.call(worker, :output_tail) do
      {:ok, tail} -> {:ok, tail}
      {:ask, child} -> Guardian.output_tail(child)
    end
  end

  @doc """
  Writes to the standard input of a worker with `stdio: :pipe`; returns when the kernel has taken it,
  so a process that does not read makes the caller wait.
  """
  @spec write(worker(), iodata()) :: :ok | {:error, Error.t()}
  def write(worker, data),
    do: GenServer.call(worker, {:write, IO.iodata_to_binary(data)}, :infinity)

  @doc "Ends the standard input of a worker with `stdio: :pipe`."
  @spec close_input(worker()) :: :ok | {:error, Error.t()}
  def close_input(worker), do: GenServer.call(worker, :close_input, :infinity)

  @doc """
  Writes a packet and gives the next one that the process writes, for programs that answer each
  request with one packet, in order. Needs `stdio: :pipe`, and a `:packet` that is not `:raw`.

  An answer that comes after `timeout` is thrown away, and the next request gets its own.
  """
  @spec request(worker(), iodata(), timeout()) :: {:ok, binary()} | {:error, Error.t()}
  def request(worker, data, timeout \\ 5_000) do
    GenServer.call(worker, {:request, IO.iodata_to_binary(data)}, timeout)
  catch
    :exit, {:timeout, _call} ->
      {:error, %Error{operation: :request, reason: :timeout}}

    :exit, {reason, _call} ->
      detail = "the worker is gone: #{inspect(reason)}"
      {:error, %Error{operation: :request, reason: :worker_down, detail: detail}}
  end

  defp genserver_options(%{name: nil}), do: []
  defp genserver_options(%{name: name}), do: [name: name]
end
