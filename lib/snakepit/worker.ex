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
  | `:stop_signal`, `:stop_timeout` | how it is asked to end, and for how long (`:sigterm`, 2000) |
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
  | `:guardian_down` | the guardian died, and the kernel ended it |

  On `:normal` and `:shutdown` the process gets `:stop_signal` and, after `:stop_timeout`, SIGKILL; on
  any other reason SIGKILL at once. A worker is gone when its tree and its entry are.
  """

  use GenServer

  alias Snakepit.{Error, Guardian, HeartbeatMonitor, Native, Telemetry}
  alias Snakepit.Worker.{Ending, Launch, Options, Output, Readiness}

  # What a supervisor waits beyond the grace period: for the tree to vanish after SIGKILL.
  @shutdown_margin_ms 5_000

  @type worker :: GenServer.server()

  # In the report of a crash: not the environment, which may hold secrets.
  @derive {Inspect, only: [:options, :exit, :tree_gone?]}
  @enforce_keys [:options, :child, :output, :monitor, :started_at]
  defstruct [:options, :child, :output, :monitor, :started_at, exit: nil, tree_gone?: false]

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
    GenServer.start_link(__MODULE__, options, genserver_options(options))
  end

  # For pools. Returns when the process runs; `owner` hears `{Snakepit.Worker, pid, {:ready, id}}` and
  # `{Snakepit.Worker, pid, {:ended, id, reason}}`.
  @doc false
  def start_link(opts, owner) do
    options = %{Options.new!(opts) | owner: owner}
    GenServer.start_link(__MODULE__, options, genserver_options(options))
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
  def write(worker, data), do: GenServer.call(worker, {:write, data}, :infinity)

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
    GenServer.call(worker, {:request, data}, timeout)
  catch
    :exit, {:timeout, _call} ->
      {:error, %Error{operation: :request, reason: :timeout}}

    :exit, {reason, _call} ->
      detail = "the worker is gone: #{inspect(reason)}"
      {:error, %Error{operation: :request, reason: :worker_down, detail: detail}}
  end

  defp genserver_options(%{name: nil}), do: []
  defp genserver_options(%{name: name}), do: [name: name]

  @impl true
  def init(options) do
    # So that `terminate/2` runs whatever ends this process, short of `:kill`, and that is the
    # guardian's and the registry's business.
    Process.flag(:trap_exit, true)
    started_at = System.monotonic_time(:millisecond)

    case Launch.run(Options.plan(options)) do
      {:ok, launched} -> launched |> new(options, started_at) |> get_ready()
      {:error, error} -> {:stop, error}
    end
  end

  defp new(launched, options, started_at) do
    %__MODULE__{
      options: options,
      child: launched.child,
      output: Output.new(options, launched.stdio),
      monitor: start_monitor(options, launched),
      started_at: started_at
    }
  end

  defp start_monitor(%{heartbeat: nil}, _launched), do: nil

  defp start_monitor(options, launched) do
    {:ok, monitor} =
      HeartbeatMonitor.start_link(
        [
          worker: self(),
          worker_id: options.id,
          os_pid: launched.child.os_pid,
          ping: options.ping,
          socket: launched.lifeline,
          patient: options.ready == :heartbeat
        ] ++ Map.to_list(options.heartbeat)
      )

    monitor
  end

  defp get_ready(%{options: %{owner: nil}} = worker) do
    case await_ready(worker) do
      {:ok, worker} -> {:ok, worker}
      {:error, error} -> {:stop, error}
    end
  end

  defp get_ready(worker), do: {:ok, worker, {:continue, :get_ready}}

  defp await_ready(worker) do
    case Readiness.await(worker, parent()) do
      {:ok, output} ->
        worker = %{worker | output: output}
        started(worker)
        {:ok, worker}

      {:error, why, output} ->
        worker = %{worker | output: output, exit: known_exit(why)}
        error = Ending.not_ready(worker, why)
        Ending.run(worker, :forced, {:shutdown, error})
        {:error, error}
    end
  end

  defp known_exit({:exited, exit, tail}), do: {exit, tail}
  defp known_exit(_why), do: nil

  defp parent do
    case Process.get(:"$ancestors") do
      [parent | _] when is_atom(parent) -> Process.whereis(parent)
      [parent | _] -> parent
    end
  end

  defp started(worker) do
    Telemetry.execute(
      [:snakepit, :process, :started],
      %{
        count: 1,
        startup_duration_ms: System.monotonic_time(:millisecond) - worker.started_at
      },
      %{
        worker_id: worker.options.id,
        os_pid: worker.child.os_pid,
        beam_pid: String.to_integer(System.pid())
      }
    )
  end

  @impl true
  def handle_continue(:get_ready, worker) do
    case await_ready(worker) do
      {:ok, worker} ->
        send(worker.options.owner, {__MODULE__, self(), {:ready, worker.options.id}})
        {:noreply, worker}

      {:error, error} ->
        tell_owner(worker, error)
        {:stop, {:shutdown, error}, %{worker | child: nil}}
    end
  end

  @impl true
  def handle_call(:os_pid, _from, worker), do: {:reply, worker.child.os_pid, worker}

  def handle_call(:child, _from, worker),
    do: {:reply, {worker.child, worker.options.signal_scope}, worker}

  def handle_call(:info, _from, worker) do
    info = %{
      id: worker.options.id,
      os_pid: worker.child.os_pid,
      cmd: worker.options.command.cmd,
      uptime_ms: System.monotonic_time(:millisecond) - worker.started_at
    }

    {:reply, {info, worker.monitor}, worker}
  end

  def handle_call(:output_tail, _from, %{output: %Output{kind: :stream}} = worker),
    do: {:reply, {:ok, Output.tail(worker.output, "")}, worker}

  def handle_call(:output_tail, _from, worker), do: {:reply, {:ask, worker.child}, worker}

  def handle_call({:write, data}, from, worker),
    do: {:noreply, %{worker | output: Output.write(worker.output, from, data)}}

  def handle_call({:request, data}, from, worker),
    do: {:noreply, %{worker | output: Output.write(worker.output, from, data, request: true)}}

  def handle_call(:close_input, from, worker),
    do: {:noreply, %{worker | output: Output.close_input(worker.output, from)}}

  def handle_call({:stop, opts}, _from, worker) do
    options = worker.options
    signal = opts[:signal] || options.stop_signal
    timeout = opts[:timeout_ms] || options.stop_timeout
    options = %{options | stop_signal: signal, stop_timeout: timeout}
    {answer, worker} = Ending.run(%{worker | options: options}, :graceful, :normal)
    {:stop, :normal, answer, worker}
  end

  @impl true
  def handle_info({Guardian, id, event}, %{child: %{id: id}} = worker), do: hear(event, worker)

  def handle_info({:tcp, socket, data}, %{output: %Output{socket: socket}} = worker) do
    {_packets, output} = Output.take(worker.output, data)
    {:noreply, %{worker | output: output}}
  end

  def handle_info({:tcp_closed, socket}, %{output: %Output{socket: socket}} = worker),
    do: {:noreply, update_in(worker.output, &Output.closed/1)}

  # From its own monitor, or from one that somebody has put beside it.
  def handle_info({:EXIT, _pid, :heartbeat_timeout}, worker),
    do: {:stop, :heartbeat_timeout, worker}

  def handle_info({:EXIT, _port_or_pid, :normal}, worker), do: {:noreply, worker}
  def handle_info({:EXIT, _linked, reason}, worker), do: {:stop, reason, worker}
  def handle_info(_other, worker), do: {:noreply, worker}

  # The tree outlives its leader by as long as it takes to kill it: the worker is not gone before.
  defp hear({:exited, exit, tail}, worker) do
    tell_owner(worker, Ending.reason(exit))
    {:noreply, %{worker | exit: {exit, tail}}}
  end

  defp hear(:guardian_down, worker), do: {:stop, :guardian_down, worker}

  defp hear({:tree_gone, _killed}, %{exit: {exit, _tail}} = worker),
    do: {:stop, Ending.reason(exit), %{worker | tree_gone?: true}}

  @impl true
  def terminate(_reason, %{child: nil}), do: :ok

  def terminate(reason, worker) do
    # Order: before those who use it hear of it, so that a pool does not give it to the next.
    tell_owner(worker, reason)
    how = if Ending.orderly?(reason), do: :graceful, else: :forced
    Ending.run(worker, how, reason)
  end

  defp tell_owner(%{options: %{owner: nil}}, _reason), do: :ok

  defp tell_owner(%{options: options}, reason),
    do: send(options.owner, {__MODULE__, self(), {:ended, options.id, reason}})
end
