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
  restarts it as usual.

      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "60"])
      iex> {:ok, os_pid} = Snakepit.Worker.os_pid(worker)
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      true
      iex> Snakepit.Worker.stop(worker)
      :ok
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      false

  ## Options

  #{Snakepit.Options.docs(Snakepit.Worker.Options.schema())}

  ## Start

  `start_link/1` returns when the process is recorded, has executed its program, and is ready:

    * `{:output, pattern}` - a line of its output contains the string or matches the regex
    * `{:tcp, port}`, `{:unix, path}` - it accepts connections there
    * `:heartbeat` - its first pong has come
    * a function - it returns `true`, `:ok` or `{:ok, _}`; it is called repeatedly, without argument or
      with a map of `:id` and `:os_pid`

  If the process ends or is not ready in time, `start_link/1` returns `{:error, %Snakepit.Error{}}` with the reason
  and the end of the output. No process, entry or connection is left then.

  The program has to stay in the foreground: its end is the end of the worker.

  ## Output

  By default the guardian keeps the end of the output for the log, which costs the BEAM nothing. With `:output` each
  line is passed on: to `Logger`, as a message `{Snakepit.Worker, id, {:output, line}}`, or to a function. The function
  is called in the worker, and the process waits while it runs. With `stdio: :pipe` there are also `write/2` and
  `request/3`; the guardian then keeps the end of standard error.

  Streams that pass through the BEAM are sockets. Programs that open `/dev/stdout` or `/dev/stderr` by
  name cannot do that with a socket.

  ## End

  | reason | why |
  |---|---|
  | `:normal` | its status was 0, or `stop/1` was called |
  | `{:exit_status, status}` | any other status |
  | `{:exit_signal, :sigkill}` | a signal ended it |
  | `:heartbeat_timeout` | it did not answer its heartbeats |
  | `:max_packet` | it wrote a line or packet longer than `:max_packet` |
  | `:unanswered` | it did not answer a request, see `request/3` |
  | `:unexpected_output` | it wrote a packet that answers nothing, see `request/3` |
  | `:guardian_down` | the guardian died, and the kernel ended it; only with `on_guardian_down: :exit` |
  | `{:survivors, os_pids}` | it, or what it has started, cannot be ended |

  On `:normal` and `:shutdown` the process gets `:stop_signal` and, after `:stop_timeout`, SIGKILL; on
  any other reason SIGKILL at once. A worker is gone when its tree and its entry are.

  ## When the guardian is lost

  The kernel ends the process then. The worker starts it again by itself, as soon as there is another guardian: the
  same BEAM process continues, under its name and in its place, with a new OS process, new connections and new
  heartbeats. It is ready again when `:ready` says so. Requests that the old process had not answered fail with
  `:worker_down`; later ones wait. There is one line in the log, and the event `[:snakepit, :process, :restarted]`.
  If the process cannot be started again, the worker exits with the `Snakepit.Error` that says why.

  ## Time to end

  `:stop_signal`, `:stop_timeout` and `:kill_mode` hold in every ending, also when the BEAM dies: see
  `Snakepit.Command`. The timeout applies to the whole tree. A worker without a `:stop_timeout` has 2000 ms
  when it is stopped by itself, and the time that the configuration sets in other endings.

  ## When the application stops

  A supervisor ends its children one after the other. When the BEAM stops (`System.stop/0`, SIGTERM,
  `bin/my_app stop`), the workers of an application end together all the same: as soon as the first of them is
  told to, all of them ask their processes, and wait for their supervisors. So they take one grace period, in
  any supervision tree. Children that stop before the first worker, such as an endpoint that is listed after
  the workers, still have all of them.

  A worker with `stop_order: :supervisor` is asked when its supervisor gets to it, for a process that other
  parts of the application need while they stop.

  `Application.stop/1` of your application alone cannot be noticed in time; see `Snakepit.prep_stop/1`.
  """

  alias Snakepit.{Error, Guardian, HeartbeatMonitor, Native}
  alias Snakepit.Worker.{Info, Options, Server}

  # What a supervisor waits beyond the grace period: for the tree to vanish after SIGKILL.
  @shutdown_margin_ms 5_000

  # A worker that starts its process again answers when that is done.
  @call_timeout 60_000

  @stop [
    signal: [
      type: :signal,
      default: nil,
      shown: "its `:stop_signal`",
      doc: "what asks the process to end"
    ],
    timeout: [
      type: :milliseconds,
      default: nil,
      shown: "its `:stop_timeout`",
      doc: "how many milliseconds it has until SIGKILL"
    ]
  ]

  @type worker :: GenServer.server()

  @doc "Returns a child specification. Its id is the `:id`, else the `:name`, else this module."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Snakepit.Options.keyword!(opts)

    %{
      id: opts[:id] || opts[:name] || __MODULE__,
      start: {__MODULE__, :start_link, [opts]},
      type: :worker,
      restart: :permanent,
      shutdown: Options.stop_timeout(opts) + @shutdown_margin_ms
    }
  end

  @doc """
  Starts a worker and its process; returns when it is ready. Raises `ArgumentError` on invalid options.
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

  @doc "Returns the pid of its OS process."
  @spec os_pid(worker()) :: {:ok, pos_integer()} | {:error, Error.t()}
  def os_pid(worker), do: call(worker, :os_pid, :os_pid)

  @doc "As `os_pid/1`; raises if there is no such worker."
  @spec os_pid!(worker()) :: pos_integer()
  def os_pid!(worker), do: bang!(os_pid(worker))

  @doc """
  Returns a map with `:id`, `:os_pid`, `:cmd`, `:uptime_ms`, and `:heartbeat`, the health that
  `Snakepit.HeartbeatMonitor.get_health_status/1` returns, or `nil`.
  """
  @spec info(worker()) :: {:ok, Info.t()} | {:error, Error.t()}
  def info(worker) do
    with {:ok, {info, monitor}} <- call(worker, :info, :info),
         do: {:ok, %Info{info | heartbeat: health(monitor)}}
  end

  @doc "As `info/1`; raises if there is no such worker."
  @spec info!(worker()) :: Info.t()
  def info!(worker), do: bang!(info(worker))

  defp health(nil), do: nil

  # It is started anew when its worker starts its process again.
  defp health(monitor) do
    HeartbeatMonitor.get_health_status(monitor)
  catch
    :exit, _reason -> nil
  end

  @doc """
  Ends a worker, and its process with all that it has started; returns when all of it is gone.

  A supervisor that restarts its children whatever their reason starts this one again. In that case use
  `Supervisor.terminate_child/2`.

  ## Options

  #{Snakepit.Options.docs(@stop)}

  """
  @spec stop(worker(), keyword()) :: :ok | {:error, Error.t()}
  def stop(worker, opts \\ []) do
    # Checked in the caller: a wrong option must not crash the worker.
    opts = Snakepit.Options.validate!(opts, @stop)

    # A name may be of any registry; only a pid, or a local name of another node, can be monitored.
    case GenServer.whereis(worker) do
      nil -> :ok
      found -> stop_found(found, opts)
    end
  end

  defp stop_found(worker, opts) do
    monitor = Process.monitor(worker)

    answer =
      try do
        GenServer.call(worker, {:stop, opts}, :infinity)
      catch
        # The worker was ending already.
        :exit, _reason -> :ok
      end

    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> answer))
  end

  @doc "Sends a signal to the process and its group."
  @spec signal(worker(), Native.signal()) :: :ok | {:error, Error.t()}
  def signal(worker, signal) do
    with {:ok, {child, scope}} <- call(worker, :child, :signal),
         do: Guardian.signal(child, signal, scope)
  end

  @doc "Returns the end of what the process has written so far."
  @spec output_tail(worker()) :: {:ok, binary()} | {:error, Error.t()}
  def output_tail(worker) do
    with {:ask, child} <- call(worker, :output_tail, :output_tail),
         do: Guardian.output_tail(child)
  end

  @doc """
  Writes to the standard input of a worker with `stdio: :pipe`. Returns when the kernel has taken the data, so a
  process that does not read makes the caller wait.
  """
  @spec write(worker(), iodata()) :: :ok | {:error, Error.t()}
  def write(worker, data),
    do: call(worker, {:write, IO.iodata_to_binary(data)}, :write, :infinity)

  @doc "Ends the standard input of a worker with `stdio: :pipe`."
  @spec close_input(worker()) :: :ok | {:error, Error.t()}
  def close_input(worker), do: call(worker, :close_input, :close_input, :infinity)

  @doc """
  Returns the packet with which the process answers this one, for programs that answer each request with
  one packet, in order. Needs `stdio: :pipe`, and `packet: :line` or `packet: 4`.

  The process has one request at a time; others wait for their turn. Nobody gets the answer to another's
  request:

    * An answer that comes after `timeout` is dropped, and the next request is sent only then. If it has
      not come `:answer_timeout` later, the worker ends with `:unanswered`.
    * A packet that comes after the first answer and answers nothing ends the worker with
      `:unexpected_output`, unless `:output` says who gets such packets.
    * A line or packet longer than `:max_packet` ends the worker with `:max_packet`.

  What a program writes unasked *after* it has been given the next request cannot be told apart from its
  answer.
  """
  @spec request(worker(), iodata(), timeout()) :: {:ok, binary()} | {:error, Error.t()}
  def request(worker, data, timeout \\ 5_000) do
    data = IO.iodata_to_binary(data)
    call(worker, {:request, data, deadline(timeout)}, :request, timeout)
  end

  # What is wrong with the worker is an error of the call, whatever the kind of its name.
  defp call(worker, request, operation, timeout \\ @call_timeout) do
    GenServer.call(worker, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      {:error, %Error{operation: operation, reason: :timeout}}

    :exit, {reason, _call} ->
      detail = "there is no such worker: #{inspect(reason)}"
      {:error, %Error{operation: operation, reason: :worker_down, detail: detail}}
  end

  defp bang!({:ok, value}), do: value
  defp bang!({:error, error}), do: raise(error)

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: System.monotonic_time(:millisecond) + timeout

  defp genserver_options(%{name: nil}), do: []
  defp genserver_options(%{name: name}), do: [name: name]
end
