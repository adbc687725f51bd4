defmodule Snakepit.Python do
  alias Snakepit.{Options, Pool}
  alias Snakepit.Python.{Bytes, Caller, Codec, Protocol, Session, Sessions, Stream}

  @call [
    timeout: [
      type: :timeout,
      default: 5_000,
      doc: "how long it may take, with the wait for a worker"
    ],
    kwargs: [
      type: {:or, [:keyword, {:custom, &is_map/1, "a map of names and values"}]},
      default: [],
      doc: "keyword arguments"
    ],
    key: Pool.with_worker_options()[:key],
    affinity: Pool.with_worker_options()[:affinity]
  ]

  @eval Keyword.drop(@call, [:kwargs])

  @stream Keyword.merge(@call,
            timeout: [
              type: :timeout,
              default: 5_000,
              doc: "how long to wait for a worker, and for each item"
            ],
            ahead: [
              type: {:integer, 1, 0xFFFF, "items"},
              default: 64,
              doc: "how many items Python may be ahead of those who read them"
            ]
          )

  @session [
    kwargs: @call[:kwargs],
    timeout: @call[:timeout],
    affinity: [
      type: {:one_of, [:hint, :strict, :fail_fast]},
      default: :strict,
      doc: "what to do if the worker of the session is in use, see below"
    ]
  ]

  @call_defaults Map.new(@call, fn {key, entry} -> {key, entry[:default]} end)

  @moduledoc """
  Python, as if it were Elixir: functions are called in a pool of Python processes, which start and end with your
  supervision tree, and of which none is ever left behind.

      children = [
        {Snakepit.Python, name: MyApp.Python, size: 4, init: "import math"}
      ]

      Supervisor.start_link(children, strategy: :one_for_one)

  Then, from anywhere:

      iex> {:ok, _python} = Snakepit.Python.start_link(name: Doc, size: 1, init: "import math")
      iex> Snakepit.Python.call(Doc, "math.hypot", [3.0, 4.0])
      {:ok, 5.0}
      iex> {:error, error} = Snakepit.Python.call(Doc, "math.sqrt", [-1])
      iex> Exception.message(error)
      "ValueError: math domain error"
      iex> Snakepit.Python.eval!(Doc, "[x * 2 for x in numbers]", %{"numbers" => [1, 2]})
      [2, 4]
      iex> Doc |> Snakepit.Python.stream("range", [1_000_000]) |> Enum.take(3)
      [0, 1, 2]

  A function is named by what `:init` has defined, by a builtin's name, or by the dotted name of something in a module,
  which is imported then. The worker looks it up at each call.

  ## Options

  #{Options.docs(Snakepit.Python.Options.own())}

  All options of `Snakepit.Pool` are those of this pool too, except for `:warm_up` and `:warm_up_timeout`, which is what
  `:init` is for. `Snakepit.Pool.info/1`, `Snakepit.Pool.await_ready/2` and the others take its name.

  `start_link/1` does not wait for `:init`. Calls wait for a worker that is ready.

  ## Errors

  An exception is `{:error, %Snakepit.Python.Error{}}` with its type, message and traceback, and the worker lives on.
  Everything else that goes wrong is a `%Snakepit.Error{}`:

  | reason | what has happened |
  |---|---|
  | `:timeout` | it took longer than its `:timeout`. It is interrupted: the main thread of the worker gets a `KeyboardInterrupt`. If it does not end within `:interrupt_timeout`, because it is in C code, the worker is replaced |
  | `:worker_down` | the worker ended while it worked on it; the next call gets another one |
  | `:busy` | too many callers wait already: see `:max_queue` |
  | `:session_lost` | the worker that kept the session is there no more |
  | `:einval` | an argument cannot be carried: the message says where in it |

  A call whose caller dies is interrupted as well. A call is never made twice: what a worker may have begun is not
  repeated.

  ## Data

  | Elixir | Python | and back |
  |---|---|---|
  | `nil`, `true`, `false` | `None`, `True`, `False` | the same |
  | integer, of any size | `int` | the same |
  | float | `float` | the same |
  | `:infinity`, `:neg_infinity`, `:nan` | `inf`, `-inf`, `nan` | the same |
  | string | `str` | the same |
  | other binary, or `bytes/1` | `bytes`; a `memoryview` from #{div(Codec.memory_from(), 1024)} KiB on | a binary |
  | list | `list` | the same |
  | tuple | `tuple` | the same |
  | map | `dict`; a list as a key is a `tuple` | a map |
  | any other atom | `snakepit_bridge.Atom`, a `str` | the atom; a string, if there is none of that name |
  | `Date`, `Time`, `NaiveDateTime` | `date`, `time`, `datetime` | the same, with microseconds |
  | `DateTime` | `datetime` with its offset from UTC | a `DateTime` in UTC |

  From Python also come kinds of these, such as `numpy.float64`, named tuples and `IntEnum`; what has a `tolist`, such as
  arrays of NumPy, as lists; and numbers by `__index__` and `__float__`. A term is at most 256 deep. Pids, functions,
  references, other structs, and in Python any other object, are refused, and the error names the way to them: `at
  [2].name: a pid cannot be carried`.

  On Linux, bytes from #{div(Codec.memory_from(), 1024)} KiB on are not sent: they are written to a sealed memory file,
  and the other side maps that. `numpy.frombuffer(view)` is an array of such an argument without a copy; an array's
  `data` as a result is a binary of its bytes.

  ## Streams

  `stream/4` calls a function that returns a generator, or anything else that can be iterated over. Its items come as a
  lazy stream: Python makes no more than `:ahead` of them before somebody reads them. When the reader stops, the
  generator is closed, so that its `finally` runs. The worker is the reader's for as long.

  ## Sessions

  `session/4` makes an object in one worker, of which `call/4` then calls methods, until the session is closed or its
  owner, the process that began it, ends:

      iex> {:ok, _python} = Snakepit.Python.start_link(name: Doc, size: 2)
      iex> {:ok, counter} = Snakepit.Python.session(Doc, "itertools.count", [5])
      iex> [Snakepit.Python.call!(counter, "__next__"), Snakepit.Python.call!(counter, "__next__")]
      [5, 6]

  With a target of `nil` it has no object and keeps the names that `eval/4` defines, as a notebook does.

  Others use the worker as well. With `affinity: :strict` a call waits for it, with `:fail_fast` it gets an error with the
  reason `:busy`. When the worker is gone the error is `:session_lost`. With `:hint` a call goes to another worker if that
  one is busy or gone, and the object is made there too: right for models, which are expensive to load, and have no state.

  ## From Python

      {Snakepit.Python, name: Py, size: 1, exports: [{MyApp.Math, [:double]}, {"log", &IO.inspect/1}]}

  lets Python call `snakepit_bridge.call("MyApp.Math.double", 21)` and `snakepit_bridge.call("log", "text")`, and nothing
  else. It waits for the result, and gets `snakepit_bridge.ElixirError` if the function raises. `snakepit_bridge.send`
  waits for nothing. Each runs in a process of its own.

  What `logging` is given goes to `Logger`, with its level and the name of its logger as the metadata `python_logger`.
  What is printed goes to `:output`; it never gets in the way of the calls.

  ## Concurrency

  A worker does one call at a time, in its main thread. With `:concurrency` it has an event loop there, and so many calls
  at a time: `async` functions run beside each other. Each other function runs to its end, as it would for anybody who
  calls it in an event loop. A worker that is exchanged because of `:max_requests` or the like, or ended by
  `:idle_timeout`, ends with the calls that it has then.

  ## Environments

    * `:system` - `python3` of the `PATH`
    * a path of an interpreter
    * `{:venv, directory}` - a virtual environment
    * `{:uv, requirements: ["numpy==2.2.*"], python: "3.12"}` - one that `uv` makes when it is needed first. It is kept
      under a hash of what it was made of, so other pools, other BEAMs and later starts use the same, also without a
      network
    * `{:uv, project: directory}` - that of a project with a `pyproject.toml`

  `mix snakepit.python.setup` makes them beforehand. They are in the directory `:dir` of the options, or that of the
  variable `SNAKEPIT_PYTHON_DIR`, or the user's cache.

  ## Processes

  Each worker has `--run-id` and the run's id in its arguments, and heartbeats. They are answered by a thread of their
  own, so a call may take as long as it likes. Processes that Python starts, with `multiprocessing` in all of its ways,
  belong to the worker and end with it.
  """

  @type python :: Pool.pool()
  @type result :: Caller.result()

  @doc "Returns a child specification. Its id is the `:name`."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Options.keyword!(opts)

    %{
      id: opts[:id] || opts[:name] || __MODULE__,
      start: {__MODULE__, :start_link, [opts]},
      type: :supervisor,
      shutdown: Pool.child_spec(worker: Keyword.get(opts, :worker, [])).shutdown
    }
  end

  @doc """
  Starts a pool of Python workers; makes their environment first, if there is none. Raises `ArgumentError` on invalid
  options.
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(given) do
    opts = Snakepit.Python.Options.new!(given)

    with {:ok, pool} <- Snakepit.Python.Options.pool(given, opts) do
      Snakepit.Python.Runtime.note(opts.name, opts.concurrency)
      Pool.start_link(pool)
    end
  end

  @doc """
  Calls a function of Python with these arguments, or a method of a session's object.

  ## Options

  #{Options.docs(@call)}

  """
  @spec call(python() | Session.t(), String.t(), list(), keyword()) :: result()
  def call(python, target, args \\ [], opts \\ [])

  def call(%Session{} = session, target, args, opts) do
    opts = options(opts)
    carried = Session.carried(session, false)
    encode = &Protocol.call(target!(target), args!(args), kwargs(opts.kwargs), carried, &1)
    Caller.request(session.pool, encode, opts.timeout, affinity(session), :call)
  end

  def call(python, target, args, opts) do
    opts = options(opts)
    encode = &Protocol.call(target!(target), args!(args), kwargs(opts.kwargs), nil, &1)
    Caller.request(python, encode, opts.timeout, affinity(opts), :call)
  end

  @doc "As `call/4`; returns the result itself, and raises the error."
  @spec call!(python() | Session.t(), String.t(), list(), keyword()) :: term()
  def call!(python, target, args \\ [], opts \\ []), do: bang!(call(python, target, args, opts))

  @doc """
  As `call/4`, without waiting for the result. Returns when the arguments are encoded; an error of the call itself is
  logged.
  """
  @spec cast(python() | Session.t(), String.t(), list(), keyword()) ::
          :ok | {:error, Snakepit.Error.t()}
  def cast(python, target, args \\ [], opts \\ []) do
    options(opts)

    with {:ok, _packet, files} <- Protocol.call(target!(target), args!(args), %{}, nil, true) do
      Codec.close(files)
      Snakepit.Python.Runtime.cast(fn -> call(python, target, args, opts) end, target)
    end
  end

  @doc """
  Runs code, and returns the value of its last line if that is an expression, otherwise `nil`.

  The code sees the names of `:init` and these variables. What it defines is gone afterwards, except in a session.

  ## Options

  #{Options.docs(@eval)}

  """
  @spec eval(python() | Session.t(), String.t(), map(), keyword()) :: result()
  def eval(python, code, variables \\ %{}, opts \\ [])

  def eval(%Session{} = session, code, variables, opts) do
    opts = options(opts)
    carried = Session.carried(session, false)
    encode = &Protocol.eval(target!(code), kwargs(variables), carried, &1)
    Caller.request(session.pool, encode, opts.timeout, affinity(session), :eval)
  end

  def eval(python, code, variables, opts) do
    opts = options(opts)
    encode = &Protocol.eval(target!(code), kwargs(variables), nil, &1)
    Caller.request(python, encode, opts.timeout, affinity(opts), :eval)
  end

  @doc "As `eval/4`; returns the value itself, and raises the error."
  @spec eval!(python() | Session.t(), String.t(), map(), keyword()) :: term()
  def eval!(python, code, variables \\ %{}, opts \\ []),
    do: bang!(eval(python, code, variables, opts))

  @doc """
  Returns a lazy stream of what a function of Python yields. Errors are raised where the stream is read.

  ## Options

  #{Options.docs(@stream)}

  """
  @spec stream(python() | Session.t(), String.t(), list(), keyword()) :: Enumerable.t()
  def stream(python, target, args \\ [], opts \\ []) do
    opts = Options.validate!(opts, @stream)
    {target!(target), args!(args)}

    {pool, carried, pool_opts} =
      case python do
        %Session{} = session -> {session.pool, Session.carried(session, false), affinity(session)}
        pool -> {pool, nil, affinity(opts)}
      end

    Stream.new(pool, pool_opts, opts, fn id, credit ->
      Protocol.stream(id, credit, target, args, kwargs(opts.kwargs), carried)
    end)
  end

  @doc """
  Makes an object in one worker and keeps it there; the caller owns it. A `target` of `nil` makes none, and keeps names.

  ## Options

  #{Options.docs(@session)}

  """
  @spec session(python(), String.t() | nil, list(), keyword()) ::
          {:ok, Session.t()} | {:error, Snakepit.Error.t() | Snakepit.Python.Error.t()}
  def session(python, target \\ nil, args \\ [], opts \\ []) do
    opts = Options.validate!(opts, @session)

    session = %Session{
      pool: python,
      key: "session-#{System.unique_integer([:positive])}",
      affinity: opts.affinity,
      target: if(target, do: target!(target), else: ""),
      args: args!(args),
      kwargs: kwargs(opts.kwargs)
    }

    # Order: known before it is made, so that its worker is told whenever its owner ends.
    Sessions.enter(session)
    encode = &Protocol.eval("", %{}, Session.carried(session, true), &1)
    # Any worker will do, whatever the affinity: it is nobody's yet.
    pool_opts = %{key: session.key, affinity: :hint}

    case Caller.request(python, encode, opts.timeout, pool_opts, :session) do
      {:ok, nil} ->
        {:ok, session}

      {:error, error} ->
        Sessions.leave(session)
        {:error, error}
    end
  end

  @doc "Ends a session: Python forgets what it kept for it."
  @spec close_session(Session.t()) :: :ok
  def close_session(%Session{} = session), do: Sessions.leave(session)

  @doc """
  Marks a binary as bytes. Without it, one that is valid UTF-8 is a string in Python.

      iex> {:ok, _python} = Snakepit.Python.start_link(name: Doc, size: 1)
      iex> Snakepit.Python.eval!(Doc, "[type(a).__name__, type(b).__name__]", %{"a" => "x", "b" => Snakepit.Python.bytes("x")})
      ["str", "bytes"]

  """
  @spec bytes(binary()) :: Bytes.t()
  def bytes(data) when is_binary(data), do: %Bytes{data: data}

  # Most calls have none.
  defp options([]), do: @call_defaults
  defp options(opts), do: Options.validate!(opts, @call)

  defp affinity(%{key: key, affinity: affinity}), do: %{key: key, affinity: affinity}

  defp kwargs([]), do: %{}
  defp kwargs(given), do: Map.new(given, fn {name, value} -> {to_string(name), value} end)

  defp target!(target) when is_binary(target), do: target
  defp target!(other), do: raise(ArgumentError, "expected a string, got: #{inspect(other)}")

  defp args!(args) when is_list(args), do: args

  defp args!(other),
    do: raise(ArgumentError, "expected a list of arguments, got: #{inspect(other)}")

  defp bang!({:ok, value}), do: value
  defp bang!({:error, error}), do: raise(error)
end
