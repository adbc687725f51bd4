defmodule Snakepit.Pool do
  alias Snakepit.{Error, Options, Telemetry, Worker}
  alias Snakepit.Pool.{Info, Server}

  # More is a mistake, and would take all processes that a BEAM may have.
  @size {:integer, 1, 65_536}

  @schema [
    size: [type: @size, required: true, doc: "how many workers; 65,536 at most"],
    worker: [
      type: {:custom, &__MODULE__.worker/1, "the options of a worker"},
      required: true,
      doc: "the options of `Snakepit.Worker`, but for `:id` and `:name`"
    ],
    name: [type: :name, default: nil, doc: "a name, as for `GenServer`"],
    id: [
      type: :text,
      default: nil,
      shown: "the name, or generated",
      doc: "what the workers' ids begin with"
    ],
    max_restarts: [
      type: {:integer, 1, :infinity},
      default: nil,
      shown: "`:size`, but at least 3",
      doc: "the restart budget, see below"
    ],
    max_seconds: [
      type: {:integer, 1, :infinity, "seconds"},
      default: 5,
      doc: "the time in which that many restarts are allowed"
    ]
  ]

  @with_worker [
    timeout: [type: :timeout, default: 5_000, doc: "how long to wait for a worker that is free"]
  ]

  @restart_worker [
    force: [type: :boolean, default: false, doc: "at once, also while a caller uses it"]
  ]

  @moduledoc """
  Several workers of one kind, shared by many callers.

      children = [
        {Snakepit.Pool, name: MyApp.Python, size: 8, worker: [cmd: ["python3", "worker.py"], stdio: :pipe, packet: :line]}
      ]

      Snakepit.Pool.with_worker(MyApp.Python, fn worker ->
        Snakepit.Worker.request(worker, "6 * 7\\n")
      end)

  ## Options

  #{Options.docs(@schema)}

  ## Start

  `start_link/1` returns when each worker's process runs or has failed to start. All workers start at the same time.
  A worker that is ready can be used while others are still starting. `await_ready/2` waits for all.

  ## Use

  `with_worker/3` lends a worker to one caller at a time, in the order in which they came. It takes the worker back
  when the function returns or raises, or when the calling process dies. A worker that ends while it is used is
  replaced, and its caller gets an error.

  A worker that has lost its process with the guardian starts it again by itself. It is not lent until it is
  ready.

  ## Failure

  A worker that ends is started again at once, as long as the budget of the pool lasts: `:max_restarts` in
  `:max_seconds`. After that, and for a worker that fails repeatedly, the pool waits longer each time, up to 30
  seconds. A worker that was ready for 10 seconds counts as recovered. The pool itself does not give up: `info/1`
  has the reason of each failure, and callers that waited too long get the last of them.
  """

  @type pool :: GenServer.server()

  @stop_margin_ms 10_000

  @doc "Returns a child specification. Its id is the `:id`, else the `:name`, else this module."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Options.keyword!(opts)
    worker = Worker.child_spec(Keyword.get(opts, :worker, []))

    %{
      id: opts[:id] || opts[:name] || __MODULE__,
      start: {__MODULE__, :start_link, [opts]},
      type: :supervisor,
      shutdown: worker.shutdown + @stop_margin_ms
    }
  end

  @doc "Starts a pool. Raises `ArgumentError` on invalid options, the workers' included."
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts = Options.validate!(opts, @schema)
    # Checked here, so that a mistake is found before anything starts.
    Worker.Options.new!(opts.worker)
    name = if opts.name, do: [name: opts.name], else: []
    GenServer.start_link(Server, opts, name)
  end

  @doc """
  Calls `fun` with a worker that no other caller has meanwhile, and returns what `fun` returns.

  Returns `{:error, %Snakepit.Error{}}` if there is no such pool, if no worker was free within the
  `:timeout`, or if the worker ended and `fun` failed because of it. What `fun` raises, throws or exits
  with otherwise goes to the caller.

  ## Options

  #{Options.docs(@with_worker)}

  """
  @spec with_worker(pool(), (pid() -> result), keyword()) :: result | {:error, Error.t()}
        when result: term()
  def with_worker(pool, fun, opts \\ []) when is_function(fun, 1) do
    opts = Options.validate!(opts, @with_worker)

    with {:ok, worker, lease} <- traced_checkout(pool, opts.timeout) do
      monitor = Process.monitor(worker)

      try do
        fun.(worker)
      catch
        kind, reason ->
          stacktrace = __STACKTRACE__
          with :alive <- lost(worker, monitor), do: :erlang.raise(kind, reason, stacktrace)
      after
        Process.demonitor(monitor, [:flush])
        GenServer.cast(pool, {:checkin, lease})
      end
    end
  end

  defp traced_checkout(pool, timeout) do
    Telemetry.span([:snakepit, :checkout], %{pool: pool}, fn ->
      case checkout(pool, timeout) do
        {:ok, worker, _lease} = answer -> {answer, %{worker: worker}}
        {:error, error} = answer -> {answer, %{error: error}}
      end
    end)
  end

  defp checkout(pool, timeout) do
    GenServer.call(pool, {:checkout, timeout}, :infinity)
  catch
    :exit, {reason, _call} ->
      detail = "the pool #{inspect(pool)} is not there: #{Exception.format_exit(reason)}"
      {:error, %Error{operation: :with_worker, reason: :pool_down, detail: detail}}
  end

  # A worker of another node cannot be asked whether it lives; its monitor has told if it does not.
  defp lost(worker, monitor) do
    receive do
      {:DOWN, ^monitor, :process, ^worker, reason} ->
        error = Error.from_exit(reason)
        detail = "the worker ended while it was used: #{Error.cause(error)}"
        {:error, %Error{operation: :with_worker, reason: :worker_down, detail: detail}}
    after
      if(node(worker) == node() and not Process.alive?(worker), do: :infinity, else: 0) -> :alive
    end
  end

  @doc """
  Returns the workers: `:id`, `:pid`, `:os_pid`, `:restarts` and `:state`, which is `:starting`, `:idle`,
  `:busy`, `:stopping`, or `:waiting` for the next attempt.
  """
  @spec list_workers(pool()) :: [Info.Worker.t()]
  def list_workers(pool), do: info(pool).workers

  @doc """
  Returns the state of the pool: its `:size`, how many workers are `:idle`, `:busy`, `:starting`, `:stopping` or
  `:waiting` to be started again, how many callers are `:queued`, the `:workers` with the
  `:last_error` of each, and the `:last_error` of all: a `Snakepit.Error` or `nil`.
  """
  @spec info(pool()) :: Info.t()
  def info(pool), do: GenServer.call(pool, :info, :infinity)

  @doc """
  Replaces a worker, by id or pid, as soon as no caller uses it.

  ## Options

  #{Options.docs(@restart_worker)}

  """
  @spec restart_worker(pool(), String.t() | pid(), keyword()) :: :ok | {:error, Error.t()}
  def restart_worker(pool, worker, opts \\ []) do
    opts = Options.validate!(opts, @restart_worker)
    GenServer.call(pool, {:restart, worker, opts.force}, :infinity)
  end

  @doc """
  Changes the number of workers. Surplus workers end when no caller uses them, idle ones first.
  """
  @spec resize(pool(), pos_integer()) :: :ok
  def resize(pool, size) do
    Options.check!(size, @size, :size)
    GenServer.call(pool, {:resize, size}, :infinity)
  end

  @doc "Waits until every worker is ready."
  @spec await_ready(pool(), timeout()) :: :ok | {:error, Error.t()}
  def await_ready(pool, timeout \\ 15_000) do
    # In the caller, and not where it would take the pool down.
    Options.check!(timeout, :timeout, :timeout)
    GenServer.call(pool, {:await_ready, timeout}, :infinity)
  end

  @doc false
  def worker(opts) do
    with true <- Keyword.keyword?(opts) do
      case for key <- [:id, :name], Keyword.has_key?(opts, key), do: key do
        [] -> true
        [key | _] -> {"options without #{inspect(key)}", opts}
      end
    end
  end
end
