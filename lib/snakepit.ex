defmodule Snakepit do
  @moduledoc """
  Runs external OS processes from Elixir. It never leaves one behind, and it never signals one that it did
  not start. The guide "Getting started" builds an application with it.

  ## Where to go from here

    * `cmd/3`, `run/3`, `stream!/2`, `stream/2` - run a program to its end
    * `Snakepit.Worker` - an OS process as a part of your supervision tree
    * `execute/3`, `execute_stream/4` - have a command carried out by a worker of a pool
    * `Snakepit.GRPCWorker` - a gRPC server as a worker
    * `Snakepit.Pool` - several workers of one kind, shared by many callers
    * `Snakepit.HeartbeatMonitor` - finds processes that hang
    * `Snakepit.Test` - checks in your own tests that nothing is left behind
    * `Snakepit.Guardian` - starts, watches and ends processes, through a helper that outlives the BEAM
      by as long as the clean-up takes
    * `Snakepit.Command` - what to run
    * `Snakepit.Pool.ProcessRegistry` - which worker runs which process, recorded so that it survives `kill -9`
    * `Snakepit.RunState` - the life of this run, and the history of earlier ones
    * `Snakepit.OSProcess` - a process known by more than its pid
    * `Snakepit.ProcessKiller` - signals and ends processes, groups, and whole runs
    * `Snakepit.Telemetry` - the events
    * `Snakepit.Metrics` - counters of them, for Prometheus
    * `Snakepit.Dashboard` - a web page of what runs, and of how earlier runs have ended
    * `Snakepit.Config` - the configuration

  """

  alias Snakepit.{Cmd, Config, Error, Execution, Options, OutputStream, Result, Run, Script}
  alias Snakepit.Pool.{ApplicationCleanup, ProcessRegistry}
  alias Snakepit.Worker.ApplicationStop

  @cleanup [
    timeout: [
      type: :milliseconds,
      default: nil,
      shown: "each its own",
      doc: "how many milliseconds they may take to end, whatever their own `:stop_timeout`"
    ]
  ]

  @doc """
  Returns the id of this run. A run is one life of this BEAM, from the start of the application to its stop.

      iex> Snakepit.RunID.valid?(Snakepit.run_id())
      true

  """
  @spec run_id() :: Snakepit.RunID.t()
  def run_id, do: Run.current!().id

  @doc """
  Ends every process that runs now. Returns when these processes and their entries in the registry are gone.

  Supervised workers are restarted by their supervisor. Processes that are started while this is under way
  live on.

  Each process gets its own stop signal, and SIGKILL after its own `:stop_timeout`, or after the
  `cleanup_on_stop_timeout_ms` of the configuration if it has none.

  ## Options

  #{Options.docs(@cleanup)}

  """
  @spec cleanup(keyword()) ::
          {:ok, %{stopped: non_neg_integer(), killed: non_neg_integer()}} | {:error, Error.t()}
  def cleanup(opts \\ []) do
    %{timeout: given} = Options.validate!(opts, @cleanup)
    config = Config.fetch!()
    timeout = given || config.cleanup_on_stop_timeout_ms

    case ApplicationCleanup.run(timeout, config.force_kill_timeout_ms, strict: given != nil) do
      %{survivors: []} = report ->
        {:ok, Map.take(report, [:stopped, :killed])}

      %{survivors: survivors} ->
        {:error, %Error{operation: :cleanup, reason: :survivors, os_pids: survivors}}
    end
  end

  @doc """
  Asks the processes of all workers of the calling application to end, for its `c:Application.prep_stop/1`:

      @impl true
      def prep_stop(state), do: Snakepit.prep_stop(state)

  Returns `state` at once. The supervisors of the application end one child after the other. They then find that the
  workers' processes have ended or are about to, so all of them together take one grace period.

  This is not needed when the BEAM stops: workers notice that by themselves. It is for `Application.stop/1` of your
  application in a BEAM that continues, and for asking workers even before children that stop earlier. Workers
  with `stop_order: :supervisor` are not asked.
  """
  @spec prep_stop(state) :: state when state: term()
  def prep_stop(state) do
    with {:ok, _name} = application <- :application.get_application(),
         do: ApplicationStop.tell(application)

    state
  end

  @doc """
  Returns the workers of this BEAM that have a process: `id`, `pid`, `os_pid`, `uptime_ms` and `state`, which is
  `:alive`, or `:dead` for one whose entry is about to be deleted.
  """
  @spec workers() :: [Snakepit.Worker.Summary.t()]
  def workers do
    now = System.monotonic_time(:millisecond)
    dead = for {id, _info} <- ProcessRegistry.validate_workers(), into: MapSet.new(), do: id

    for {id, %{status: :active} = info} <- ProcessRegistry.list_all_workers() do
      %Snakepit.Worker.Summary{
        id: id,
        pid: info.owner,
        os_pid: info.os_pid,
        uptime_ms: now - info.since_ms,
        state: if(id in dead, do: :dead, else: :alive)
      }
    end
  end

  @doc """
  Runs a program to its end and returns its output and status, like `System.cmd/3`, all of whose options it takes.

      iex> Snakepit.cmd("echo", ["hello"])
      {"hello\\n", 0}
      iex> Snakepit.cmd("tr", ["a-z", "A-Z"], input: "loud")
      {"LOUD", 0}
      iex> Snakepit.cmd("sh", ["-c", "echo begun; sleep 60"], timeout: 100)
      {"begun\\n", :timeout}
      iex> Snakepit.cmd("sh", ["-c", "echo begun; sleep 60"], idle_timeout: 100)
      {"begun\\n", :idle_timeout}
      iex> Snakepit.cmd("yes", [], max_output: 3)
      {"y\\ny", :max_output}
      iex> Snakepit.cmd("seq", ["3"], into: [], lines: 1024)
      {["1", "2", "3"], 0}
      iex> Snakepit.cmd("sh", ["-c", "echo oops >&2"], stderr: :merge)
      {"oops\\n", 0}
      iex> Snakepit.cmd("wc", ["-l"], input: Stream.map(1..3, &"\#{&1}\\n"))
      {"3\\n", 0}

  The second element is the exit status; `:timeout`, `:idle_timeout` or `:max_output` if the program was killed
  because of that limit, with the output until then. A program that a signal has ended has a status of 128 and the
  number of the signal, as in a shell.

  Raises `Snakepit.Error` if the program cannot be started, is lost with the guardian, or ends with another status
  than `:success` allows; `run/3` returns errors instead. What an `:input` raises is raised here.

  Neither the program nor anything that it has started is left behind, whatever happens to the caller.

  ## Options

  #{Options.docs(Cmd.schema())}

  When the program ends, the processes that it has left get `:stop_signal`. They get SIGKILL after
  `:stop_timeout`, or when the `:timeout` is up. The call returns when they are gone, also if somebody else holds
  the program's output open.
  """
  @spec cmd(String.t(), [String.t()], keyword()) ::
          {Collectable.t(), non_neg_integer() | :timeout | :idle_timeout | :max_output}
  defdelegate cmd(program, args, opts \\ []), to: Cmd

  @doc """
  Runs a program to its end, as `cmd/3` does, and returns a `Snakepit.Result`: status or signal, standard output,
  standard error, duration and resource usage.

      iex> {:ok, result} = Snakepit.run("sh", ["-c", "echo out; echo err >&2; exit 3"], stderr: :capture)
      iex> {result.status, result.stdout, result.stderr}
      {3, "out\\n", "err\\n"}
      iex> {:error, error} = Snakepit.run("no-such-program", [])
      iex> error.reason
      :enoent
      iex> {:error, error} = Snakepit.run("sh", ["-c", "echo oops >&2; exit 3"], success: [0, 1])
      iex> {error.reason, error.status, error.output}
      {:exit_status, 3, "oops\\n"}

  A program that ends with another status than 0, or by a signal, is no error here unless `:success` is given.
  `:timeout`, `:idle_timeout` and `:max_output` are errors, with the end of the output. The options are those of
  `cmd/3`. Invalid options raise `ArgumentError`, and what an `:input` raises is raised here.
  """
  @spec run(String.t(), [String.t()], keyword()) :: {:ok, Result.t()} | {:error, Error.t()}
  defdelegate run(program, args, opts \\ []), to: Cmd

  @doc """
  Returns the output of a program as a lazy stream. The program waits while its output is not read.

      iex> Snakepit.stream!(["yes"], packet: :line) |> Enum.take(2)
      ["y\\n", "y\\n"]
      iex> Snakepit.stream!(["sh", "-c", "echo out; echo err >&2"], stderr: :capture) |> Enum.sort()
      [stderr: "err\\n", stdout: "out\\n"]

  The program starts when the stream is run, and belongs to the process that runs it. Abandoning the
  stream, as `Enum.take/2` does, kills it. A program that cannot be started, ends with another status than `:success`
  allows, or hits a limit, raises `Snakepit.Error`.

  An `:input` that is an enumerable is run by a process of its own, and asked for more when the program has taken what
  it had. What it raises is raised by the stream. So files of any size pass through a program in constant memory,

      Snakepit.stream!(["gzip"], input: File.stream!(path, [], 65_536))
      |> Enum.into(File.stream!(path <> ".gz"))

  and programs can be chained. All of them end when the last one is abandoned, or when one of them fails:

      iex> numbers = Snakepit.stream!(["seq", "1000"])
      iex> Snakepit.stream!(["grep", "99"], input: numbers, packet: :line) |> Enum.take(2)
      ["99\\n", "199\\n"]

  A `:timeout` is that of the program, and includes the time that the reader takes; it is noticed when the reader asks
  for more. `:idle_timeout` is how long a reader that asks may have to wait.

  ## Options

  #{Options.docs(OutputStream.raising_schema())}

  """
  @spec stream!([String.t()], keyword()) :: Enumerable.t()
  defdelegate stream!(argv, opts \\ []), to: OutputStream, as: :new!

  @doc """
  As `stream!/2`, and does not raise for the program: the last element says how it has ended.

      iex> Snakepit.stream(["sh", "-c", "echo out; exit 3"]) |> Enum.to_list()
      ["out\\n", {:exit, {:status, 3}}]

  The last element is one of

    * `{:exit, {:status, status}}`
    * `{:exit, {:signal, signal}}`, such as `:sigkill`
    * `{:exit, :epipe}` - the program has ended with status 0 and did not read all of its `:input`. `head` does that,
      and so does a program that has overlooked a part of its work. Input of less than 64 KiB fits into the pipe, and
      may go unread without being noticed. Where another status or a signal says more, that is told instead
    * `{:exit, {:error, error}}`, a `Snakepit.Error`, if the program could not be started, was killed because of a
      limit, or was lost with the guardian

  Nothing of the program is left when this element is there. An abandoned stream has no last element. What an `:input`
  raises is raised by this stream too.

  The options are those of `stream!/2` without `:success`.
  """
  @spec stream([String.t()], keyword()) :: Enumerable.t()
  defdelegate stream(argv, opts \\ []), to: OutputStream, as: :new

  @doc """
  Has a worker of a pool carry out a command, and returns its result.

      {:ok, %{"msg" => "hi"}} = Snakepit.execute("ping", %{msg: "hi"})

  The pool's workers are of a kind that has commands, such as `Snakepit.GRPCWorker`. Arguments are a map or keyword list of
  names to values. What becomes of values on their way is described in the guide "gRPC workers"; the keys of a
  result's maps are strings.

  ## Options

  #{Options.docs(Execution.schema())}

  """
  @spec execute(String.t(), map() | keyword(), keyword()) :: {:ok, term()} | {:error, Error.t()}
  defdelegate execute(command, arguments \\ %{}, opts \\ []), to: Execution

  @doc """
  As `execute/3`, for a command that answers in parts. `callback` is called with each as it comes, in this process.

      :ok = Snakepit.execute_stream("count", %{to: 3}, &IO.inspect/1)

  The worker waits while the callback runs. If the callback raises or throws, the command is cancelled. After an error
  no further part comes.

  ## Options

  Those of `execute/3`, but the `:timeout` is #{Execution.stream_schema()[:timeout][:default]} ms.
  """
  @spec execute_stream(String.t(), map() | keyword(), (term() -> term()), keyword()) ::
          :ok | {:error, Error.t()}
  defdelegate execute_stream(command, arguments \\ %{}, callback, opts \\ []), to: Execution

  @doc """
  Runs `fun` as a script: starts Snakepit if need be, returns what `fun` returns, and leaves no process behind, also
  when `fun` raises, throws or exits.

      iex> Snakepit.run_as_script(fn -> 6 * 7 end)
      42

  If the script itself is ended, by Ctrl-C or `kill -9`, the guardian ends the processes.

  ## Options

  #{Options.docs(Script.schema())}

  """
  @spec run_as_script((() -> result), keyword()) :: result when result: term()
  defdelegate run_as_script(fun, opts \\ []), to: Script, as: :run
end
