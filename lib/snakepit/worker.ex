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
    * `:notify` - it has said `READY=1`, as programs do for systemd; see [Readiness and watchdog](#module-readiness-and-watchdog)
    * a function - it returns `true`, `:ok` or `{:ok, _}`; it is called repeatedly, without argument or
      with a map of `:id` and `:os_pid`

  If the process ends or is not ready in time, `start_link/1` returns `{:error, %Snakepit.Error{}}` with the reason
  and the end of the output. No process, entry or connection is left then.

  The program has to stay in the foreground: its end is the end of the worker.

  ## Output

  By default the guardian keeps the end of the output for the log, which costs the BEAM nothing. With `:output` each
  line is passed on: to `Logger`, as a message `{Snakepit.Worker, id, {:output, line}}`, or to a function. The function
  is called in the worker, and the process waits while it runs.

  Standard error is a part of that, or with `:stderr` something of its own: `:tail` keeps its end for the log; `:read` is
  for `read_stderr/2`; passed on, its messages are `{Snakepit.Worker, id, {:stderr, line}}`. Where it is apart, its end
  is what the log shows when the process has ended.

  ## Talking to it

  With `stdio: :pipe` a worker has its process's standard input and output, as pipes. `:packet` says how they are cut,
  and `request/3` asks and waits for the answer:

      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)
      iex> Snakepit.Worker.request(worker, "Hello\\n")
      {:ok, "Hello\\n"}
      iex> Snakepit.Worker.stop(worker)
      :ok

  With `packet: 1`, `2` or `4` a packet is any bytes, with their length before them. A process that can do several things
  at a time gets `:in_flight` requests, and with a `:tag` it may answer them in any order.

  ## Output on demand

  With `output: :read` nothing is read before somebody asks, so the process waits when the pipe is full:

      iex> script = "printf 'name? '; read name; echo Hello, $name; printf bye"
      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sh", "-c", script], stdio: :pipe, output: :read)
      iex> Snakepit.Worker.read(worker, 6)
      {:ok, "name? "}
      iex> Snakepit.Worker.write(worker, "Joe\\n")
      :ok
      iex> Snakepit.Worker.read(worker, :line, 5_000)
      {:ok, "Hello, Joe\\n"}
      iex> Snakepit.Worker.read(worker, :line, 5_000)
      {:ok, "bye"}
      iex> Snakepit.Worker.read(worker, :line, 5_000)
      :eof

  With `output: {:send, pid}` and `:active` it sends so many messages, then `{Snakepit.Worker, id, :passive}`, and goes on
  after `activate/2`:

      iex> options = [cmd: ["seq", "3"], id: "seq", output: {:send, self()}, active: 2]
      iex> {:ok, worker} = Snakepit.Worker.start_link(options)
      iex> next = fn -> receive do: ({Snakepit.Worker, "seq", news} -> news), after: (5_000 -> nil) end
      iex> [next.(), next.(), next.()]
      [{:output, "1\\n"}, {:output, "2\\n"}, :passive]
      iex> Snakepit.Worker.activate(worker, true)
      :ok
      iex> [next.(), next.()]
      [{:output, "3\\n"}, :eof]

  `:eof` is the end of the output of one OS process. It comes also while the process runs on with its output closed. When
  the process ends first, with everything that it has started, the worker keeps what has not been read and exits when its
  end has been told, but no later than `:linger` after the last who asked. What is left then is dropped, as it is when the
  worker is stopped. A supervisor starts the next process afterwards: with `linger: 0` at once. When the process was lost
  with the guardian, those who wait are told `:eof`, and later ones read from its successor.

  Output to `Logger` has options:

      output: {:logger, level: :debug, metadata: [service: :thumbnails], max_per_second: 100}

  #{Snakepit.Options.docs(Snakepit.Output.Log.schema())}

  Each line is an entry. Bytes that are no text are shown as `\\xFF`. Lines beyond the limit are counted, and one line
  says how many were left out. A `:transform` that fails is reported once, and its lines are logged as they are.

  ## Output to a file

  With `stdio: {:file, path}` the process has the file itself, and appends to it; `{:file, path, :truncate}` empties it
  at each start. What it writes is in the file whatever becomes of the BEAM. But nobody can exchange the file that a
  process has: after a rotation it goes on to write to the one that was renamed.

  With `stdio: {:file, path, reopen: true}` output passes through the BEAM, which appends it to the file, in pieces of up
  to 64 KiB and without a message. `reopen_output/1` changes to a new file of that name. In exchange, what the process
  writes after the death of the BEAM is lost, and each byte is copied once more. A slow disk makes the process wait, as
  it would without the BEAM. If the disk is full the process runs on, which one that writes by itself might not: what
  cannot be written is lost, an error is logged when that begins, and how many bytes it were is written to the log and
  to the file when there is room again.

  ## Terminals

  With `stdio: :pty`, or `stdio: {:pty, rows: 40, cols: 120}`, the process has a terminal of its own, for programs that
  want a person in front of them: shells, editors, password prompts. `write/2` types, `resize/3` sets the size,
  `interrupt/1` and `close_input/1` are Ctrl-C and Ctrl-D. The process is asked to end with SIGHUP unless `:stop_signal`
  says otherwise. `Snakepit.Terminal` has the details, and puts your own terminal in front of it.

  ## Readiness and watchdog

  With `ready: :notify` or a `:watchdog` the process finds the variable `NOTIFY_SOCKET` and can say how it is, by the
  protocol of `sd_notify(3)`. PostgreSQL, gunicorn, nginx's unit and many others speak it, and so does the program
  `systemd-notify`. Everything in its tree may speak for it, and nobody else.

    * `READY=1` - it is ready
    * `STATUS=text` - for people: `info/1` has it as `:notify`
    * `X_SNAKEPIT_ADDRESS=address` - where it serves, for `Snakepit.GRPCWorker`
    * `WATCHDOG=1` - a heartbeat. With `watchdog: milliseconds` it finds `WATCHDOG_USEC`, and if it does not say this in
      time after it is ready, the worker ends with `:heartbeat_timeout`; at once with `WATCHDOG=trigger`
    * `EXTEND_TIMEOUT_USEC=n` - it needs at least so many microseconds from now on, at most ten minutes, to start or to
      end. A supervisor does not wait longer for that than the `:shutdown` of its child specification
    * `RELOADING=1`, `STOPPING=1` - what it is about to do. One that stops needs no watchdog any more

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
  any other reason SIGKILL at once, except that on `:heartbeat_timeout` it gets its `:abort_signal` first, if it has one.
  A worker is gone when its tree and its entry are.

  With a `:stop_command`, such as `["nginx", "-s", "quit"]`, that is run instead of the signal, with the environment, user
  and directory of the process, and its pid in `MAINPID`. If it cannot be run, or ends with another status than 0, the
  process gets its stop signal. The `:stop_timeout` is that of both together. The guardian does not run it: when the BEAM
  is gone, and on `Snakepit.cleanup/1`, the process gets the stop signal.

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

  alias Snakepit.{Error, Guardian, HeartbeatMonitor, ProcessKiller, Usage}
  alias Snakepit.Worker.{Deadline, Info, Notify, Options, Server, Terminal}

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

  @usage [
    pss: [
      type: :boolean,
      default: false,
      doc:
        "also the share of memory that counts for these processes alone; that takes longer, the more memory they have"
    ]
  ]

  @what {:or, [{:one_of, [:any, :line]}, {:integer, 1, :infinity, "bytes"}]}

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

    # A process that exits like that is not reported as crashed: the log has said why it did not start.
    with {:error, {:shutdown, %Error{} = error}} <-
           GenServer.start_link(Server, options, genserver_options(options)),
         do: {:error, error}
  end

  # For pools. Returns at once: the worker checks these options and launches its process by itself. `owner` hears
  # `{Snakepit.Worker, pid, {:launched, id}}`, `{Snakepit.Worker, pid, {:ready, id}}` and
  # `{Snakepit.Worker, pid, {:ended, id, reason}}`.
  @doc false
  def start_link(opts, owner), do: GenServer.start_link(Server, {opts, owner})

  @doc "Returns the pid of its OS process."
  @spec os_pid(worker()) :: {:ok, pos_integer()} | {:error, Error.t()}
  def os_pid(worker), do: call(worker, :os_pid, :os_pid)

  @doc "As `os_pid/1`; raises if there is no such worker."
  @spec os_pid!(worker()) :: pos_integer()
  def os_pid!(worker), do: bang!(os_pid(worker))

  @doc """
  Returns a map with `:id`, `:os_pid`, `:cmd`, `:uptime_ms`, `:heartbeat`, the health that
  `Snakepit.HeartbeatMonitor.get_health_status/1` returns, or `nil`, `:notify`, what the process has said of itself, and
  `:usage`, see `usage/2`.
  """
  @spec info(worker()) :: {:ok, Info.t()} | {:error, Error.t()}
  def info(worker) do
    with {:ok, {%Info{} = info, monitor, notify, child}} <- call(worker, :info, :info) do
      usage = with {:ok, usage} <- Usage.of(child, false), do: usage, else: (_gone -> nil)

      # A watchdog is the heartbeat of a worker that has no other.
      health =
        ask(monitor, &HeartbeatMonitor.get_health_status/1) || ask(notify, &Notify.health/1)

      {:ok, %{info | heartbeat: health, notify: ask(notify, &Notify.status/1), usage: usage}}
    end
  end

  @doc "As `info/1`; raises if there is no such worker."
  @spec info!(worker()) :: Info.t()
  def info!(worker), do: bang!(info(worker))

  defp ask(nil, _question), do: nil

  # It is started anew when its worker starts its process again.
  defp ask(pid, question) do
    question.(pid)
  catch
    :exit, _reason -> nil
  end

  @doc """
  Returns what its process and everything that it has started use: processor time, memory, descriptors, input and output.
  The worker itself is not kept waiting.

      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sh", "-c", "sleep 60 & wait"])
      iex> {:ok, usage} = Snakepit.Worker.usage(worker)
      iex> usage.processes in 1..2
      true
      iex> Snakepit.Worker.stop(worker)
      :ok

  ## Options

  #{Snakepit.Options.docs(@usage)}

  """
  @spec usage(worker(), keyword()) :: {:ok, Usage.t()} | {:error, Error.t()}
  def usage(worker, opts \\ []) do
    %{pss: pss?} = Snakepit.Options.validate!(opts, @usage)
    with {:ok, {child, _scope}} <- call(worker, :child, :usage), do: Usage.of(child, pss?)
  end

  @doc "As `usage/2`, for each process by itself."
  @spec processes(worker(), keyword()) :: {:ok, [Usage.os_process()]} | {:error, Error.t()}
  def processes(worker, opts \\ []) do
    %{pss: pss?} = Snakepit.Options.validate!(opts, @usage)
    with {:ok, {child, _scope}} <- call(worker, :child, :usage), do: Usage.processes(child, pss?)
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
  @spec signal(worker(), ProcessKiller.signal()) :: :ok | {:error, Error.t()}
  def signal(worker, signal) do
    with {:ok, {child, scope}} <- call(worker, :child, :signal),
         do: Guardian.signal(child, signal, scope)
  end

  @doc """
  Returns the end of what the process has written so far: to standard error, if that is apart and anything was written
  there; otherwise as output.
  """
  @spec output_tail(worker()) :: {:ok, binary()} | {:error, Error.t()}
  def output_tail(worker) do
    with {:ask, child, {"", last}} <- call(worker, :output_tail, :output_tail),
         {:ok, ""} <- Guardian.output_tail(child) do
      {:ok, last}
    else
      {:ask, _child, {first, _last}} -> {:ok, first}
      answer -> answer
    end
  end

  @doc """
  Writes to the standard input of a worker with `stdio: :pipe`, or types at the terminal of one with `stdio: :pty`.
  Returns when the kernel has taken the data, so a process that does not read makes the caller wait.

  After `timeout` the error says how much was `written`. With `packet: :raw` no more is written then. A packet or line
  that was begun is written to its end as soon as the process reads, because it would take the next one for the rest of
  it. `:epipe` means that the process has closed its input or ended, `:emsgsize` that the data is longer than the length
  of a packet can say. What a caller has handed over is written also if the caller dies meanwhile.
  """
  @spec write(worker(), iodata(), timeout()) :: :ok | {:error, Error.t()}
  def write(worker, data, timeout \\ :infinity),
    do: talk(worker, {:write, IO.iodata_to_binary(data)}, :write, timeout)

  @doc """
  Ends the standard input of a worker with `stdio: :pipe`, after everything that was written before.

  At a terminal (`stdio: :pty`) this types the end of file, as a person does with Ctrl-D. The terminal is still there,
  and more can be typed.
  """
  @spec close_input(worker()) :: :ok | {:error, Error.t()}
  def close_input(worker), do: talk(worker, :close_input, :close_input, :infinity)

  @doc """
  Returns the next output of a worker with `output: :read`; `:eof` after the last of it. Nothing is read from the
  process before somebody asks for it, except the rest of a chunk of 64 KiB: a process that writes more than a pipe
  holds waits.

  `what` is

    * `:any` - the next line or packet; with `packet: :raw` whatever there is, at least a byte
    * a number of bytes, with `packet: :raw` - so many, and fewer only at the end
    * `:line` - a line with its newline, or the last one without; not with packets that have a length

  Callers get their output in the order in which they came. With the reason `:timeout`, and also if the caller dies,
  nothing is lost: it is there for the next one. What comes after the end of the process is described under
  [Output on demand](#module-output-on-demand).
  """
  @spec read(worker(), :any | :line | pos_integer(), timeout()) ::
          {:ok, binary()} | :eof | {:error, Error.t()}
  def read(worker, what \\ :any, timeout \\ :infinity) do
    Snakepit.Options.check!(what, @what)
    talk(worker, {:read, :source, what}, :read, timeout)
  end

  @doc "As `read/3`, for what there is on standard error of a worker with `stderr: :read`."
  @spec read_stderr(worker(), timeout()) :: {:ok, binary()} | :eof | {:error, Error.t()}
  def read_stderr(worker, timeout \\ :infinity),
    do: talk(worker, {:read, :error, :any}, :read, timeout)

  @doc """
  Has a worker with `output: {:send, pid}` send so many messages more than it was to send already: a number, `:once`
  for one, or `true` for all. When they are sent `{Snakepit.Worker, id, :passive}` comes, and the process waits.
  """
  @spec activate(worker(), true | :once | pos_integer()) :: :ok | {:error, Error.t()}
  def activate(worker, count) do
    Snakepit.Options.check!(count, Options.schema()[:active][:type])
    talk(worker, {:activate, count}, :activate, @call_timeout)
  end

  @doc """
  Has a worker with `stdio: {:file, path, reopen: true}` write to the file that has the name `path` now, or to a new one.

  Rename the file, then call this: all output that comes afterwards is in the new file. If it cannot be opened, output
  goes on to the old one.
  """
  @spec reopen_output(worker()) :: :ok | {:error, Error.t()}
  def reopen_output(worker), do: call(worker, :reopen_output, :reopen_output)

  @doc """
  Types the interrupt character, Ctrl-C, at the terminal of a worker with `stdio: :pty`.

  The kernel then sends SIGINT to the program in front, which need not be the one that the worker has started. A
  terminal in raw mode passes the character on instead. To send a signal to the worker's process, use `signal/2`.
  """
  @spec interrupt(worker()) :: :ok | {:error, Error.t()}
  def interrupt(worker) do
    case Snakepit.Terminal.modes(worker) do
      {:ok, %{intr: 0}} -> {:error, %Error{operation: :interrupt, reason: :enotsup}}
      {:ok, %{intr: character}} -> write(worker, <<character>>)
      {:error, error} -> {:error, %{error | operation: :interrupt}}
    end
  end

  @doc """
  Sets the size of the terminal of a worker with `stdio: :pty`. The program in front gets SIGWINCH if it has changed.

      Snakepit.Worker.resize(worker, 50, 120)
      Snakepit.Worker.resize(worker, cols: 120)
  """
  @spec resize(worker(), pos_integer(), pos_integer()) :: :ok | {:error, Error.t()}
  def resize(worker, rows, cols), do: resize(worker, rows: rows, cols: cols)

  @doc "As `resize/3`, with `:rows`, `:cols` or both."
  @spec resize(worker(), keyword()) :: :ok | {:error, Error.t()}
  def resize(worker, size), do: terminal(worker, {:resize, Terminal.size!(size)})

  @doc """
  Returns the packet with which the process answers this one, for programs that answer each request with
  one packet. Needs `stdio: :pipe`, and `packet: :line`, `1`, `2` or `4`.

  The process has `:in_flight` requests at a time; others wait for their turn. It answers them in their order, or, with
  a `:tag`, in any: then each packet begins with a tag, of which callers see nothing, and the program repeats it at the
  beginning of the answer. Nobody gets the answer to another's request:

    * An answer that comes after `timeout` is dropped. Its place, and its tag, are free for another request only then.
      If it has not come `:answer_timeout` later, the worker ends with `:unanswered`.
    * A packet that comes after the first answer and answers nothing, or has the tag of no request, ends the worker
      with `:unexpected_output`, unless `:output` says who gets such packets.
    * A line or packet longer than `:max_packet` ends the worker with `:max_packet`.

  Without a tag, what a program writes unasked *after* it has been given the next request cannot be told apart from its
  answer. A request that is longer than the length of a packet can say is refused with `:emsgsize`.
  """
  @spec request(worker(), iodata(), timeout()) :: {:ok, binary()} | {:error, Error.t()}
  def request(worker, data, timeout \\ 5_000) do
    request = {:talk, {:request, IO.iodata_to_binary(data)}, Deadline.new(timeout)}
    call(worker, request, :request, timeout)
  end

  # As `request/3`, for callers who do something else meanwhile. The answer comes as `{reference, {:ok, packet}}` or
  # `{reference, {:error, error}}`; the reference is a monitor too.
  @doc false
  @spec begin_request(pid(), binary()) :: reference()
  def begin_request(worker, data) do
    request = Process.monitor(worker)
    send(worker, {:"$gen_call", {self(), request}, {:talk, {:request, data}, :infinity}})
    request
  end

  # The worker says that the time is up: then it knows that nobody got what it had.
  defp talk(worker, request, operation, timeout) do
    request = {:talk, request, Deadline.new(timeout)}
    call(worker, request, operation, Deadline.patience(timeout))
  end

  # The process that talks to its OS process, see `Snakepit.Worker.Client`; `nil` for a worker that has none.
  @doc false
  @spec client(worker(), timeout()) :: {:ok, pid() | nil} | {:error, Error.t()}
  def client(worker, timeout), do: call(worker, :client, :client, timeout)

  # What `Snakepit.Worker.Terminal` does.
  @doc false
  def terminal(worker, request), do: call(worker, {:terminal, request}, :terminal)

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

  defp genserver_options(%{name: nil}), do: []
  defp genserver_options(%{name: name}), do: [name: name]
end
