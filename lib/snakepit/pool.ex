defmodule Snakepit.Pool do
  alias Snakepit.{Error, Options, Telemetry, Worker}
  alias Snakepit.Cluster.Pools
  alias Snakepit.Pool.{Info, Server}

  @with_worker [
    timeout: [type: :timeout, default: 5_000, doc: "how long to wait for a worker that is free"],
    key: [
      type: {:custom, &__MODULE__.any?/1, "any term"},
      default: nil,
      doc: "any term; those who have the same one get the same worker, see below"
    ],
    affinity: [
      type: {:one_of, [:hint, :strict, :fail_fast]},
      default: :hint,
      doc: "what to do if the worker of the `:key` is in use: see below"
    ]
  ]

  @with_worker_defaults Map.new(@with_worker, fn {key, entry} -> {key, entry[:default]} end)

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

  #{Options.docs(Snakepit.Pool.Options.schema())}

  ## Start

  `start_link/1` returns when each worker's process runs or has failed to start. As many are launched at a time as
  `:launches` says. A launch that takes longer than `:launch_timeout`, for example because the disk does not answer, is
  not waited for. A worker that is ready can be used while others are still starting. `await_ready/2` waits for all.

  With `:warm_up` a worker is ready when that function has returned `:ok`, `true` or `{:ok, value}`. It is called with
  the worker, in a process of its own, so others are used meanwhile. If it fails, the worker is ended and started again.
  `{module, function, arguments}` is called with the worker before its arguments.

  Pools may also be started with Snakepit, from the configuration: see `:pools` in `Snakepit.Config`.

  ## Use

  `with_worker/3` lends a worker to one caller at a time, in the order in which they came. It takes the worker back
  when the function returns or raises, or when the calling process dies. A worker that ends while it is used is
  replaced, and its caller gets an error.

  A worker that has lost its process with the guardian starts it again by itself. It is not lent until it is
  ready.

  With `:max_queue`, a caller that would wait behind so many others gets an error with the reason `:busy` at once.

  ## Keys

  Callers with the same `:key` get the same worker for as long as its process lives, and so what it keeps for them. With
  `affinity: :hint` a caller gets another worker if that one is in use, with `:strict` it waits for it, and with
  `:fail_fast` it gets an error with the reason `:busy`. When the worker ends, or another one takes its place, its keys
  belong to no worker until they are used again.

  ## Size

  With `:min` and `:max` a worker is started when a caller finds none that is free, as far as `:max` allows. One that
  was not used for `:idle_timeout` ends, as far as `:min` allows.

  ## Workers that wear out

  A worker that was lent `:max_requests` times, is older than `:max_age`, or uses more than `:max_memory` is exchanged:
  another one is started beside it, and takes its place when it is ready. Until then the old one is used, so
  nobody waits for the exchange, and a worker may be lent a few times more than `:max_requests` says. A tenth of a pool
  is exchanged at a time, and at least one worker.

  ## Failure

  A worker that ends is started again at once, as long as the budget of the pool lasts: `:max_restarts` in
  `:max_seconds`. After that, and for a worker that fails repeatedly, the pool waits longer each time, up to 30
  seconds. A worker that was ready for 10 seconds counts as recovered. The pool itself does not give up: `info/1`
  has the reason of each failure, and callers that waited too long get the last of them.
  """

  @type pool :: GenServer.server() | {:cluster, atom()}

  @stop_margin_ms 10_000

  @doc "Returns a child specification. Its id is the `:id`, else the `:name`, else this module."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Options.keyword!(opts)
    {worker, _adapter} = Snakepit.Pool.Options.resolve(Keyword.get(opts, :worker, []))
    worker = Worker.child_spec(worker)

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
    # Checked here, so that a mistake is found before anything starts.
    opts = Snakepit.Pool.Options.complete!(opts)
    name = if opts.name, do: [name: opts.name], else: []

    # Order: the pool serves callers while this process waits.
    with {:ok, pool} <- GenServer.start_link(Server, opts, name) do
      :ok = GenServer.call(pool, :await_launches, :infinity)
      {:ok, pool}
    end
  end

  @doc """
  Calls `fun` with a worker that no other caller has meanwhile, and returns what `fun` returns.

  Returns `{:error, %Snakepit.Error{}}` if there is no such pool (`:pool_down`), if no worker was free within the
  `:timeout` (`:timeout`), if the caller may not wait (`:busy`), or if the worker ended and `fun` failed because of it
  (`:worker_down`). What `fun` raises, throws or exits
  with otherwise goes to the caller.

  The pool `{:cluster, name}` is any of the pools of that name in the cluster, see `Snakepit.Cluster`: this node's if it has
  a free worker, else one that has, else the least busy. `fun` runs here, and the worker there. When its node is lost
  meanwhile, the error is `:worker_down` or `:pool_down`.

  ## Options

  #{Options.docs(@with_worker)}

  """
  @spec with_worker(pool(), (pid() -> result), keyword() | map()) :: result | {:error, Error.t()}
        when result: term()
  def with_worker(pool, fun, opts \\ [])

  def with_worker({:cluster, name}, fun, opts) when is_atom(name) and is_function(fun, 1),
    do: with_worker(Pools.choose(name), fun, opts)

  def with_worker(pool, fun, opts) when is_function(fun, 1) do
    opts = checkout_options(opts)

    with {:ok, worker, lease} <- traced_checkout(pool, opts) do
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

  # For those who have a worker for longer than a function takes: streams. `give_back/2` follows, or the end of the caller.
  @doc false
  @spec lend(pool(), keyword() | map()) :: {:ok, pid(), reference()} | {:error, Error.t()}
  def lend(pool, opts), do: traced_checkout(pool, checkout_options(opts))

  # Done for each call: most callers have none, and those of Snakepit itself, which are a map, are right.
  defp checkout_options([]), do: @with_worker_defaults
  defp checkout_options(%{} = opts), do: Map.merge(@with_worker_defaults, opts)
  defp checkout_options(opts), do: Options.validate!(opts, @with_worker)

  @doc false
  @spec give_back(pool(), reference()) :: :ok
  def give_back(pool, lease) when is_reference(lease),
    do: GenServer.cast(pool, {:checkin, lease})

  @doc false
  @spec with_worker_options() :: Options.schema()
  def with_worker_options, do: @with_worker

  defp traced_checkout(pool, opts) do
    Telemetry.span([:snakepit, :checkout], %{pool: pool}, fn ->
      case checkout(pool, opts) do
        {:ok, worker, _lease} = answer -> {answer, %{worker: worker}}
        {:error, error} = answer -> {answer, %{error: error}}
      end
    end)
  end

  # The pool counts the time, also for callers on other nodes: it says so when it is up, and lends nothing afterwards.
  defp checkout(pool, opts) do
    GenServer.call(pool, {:checkout, opts.timeout, opts.key, opts.affinity}, :infinity)
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
  Returns the state of the pool: its `:size`, between `:min` and `:max`; how many workers are `:idle`, `:busy`,
  `:starting`, `:stopping` or `:waiting` to be started again; how many callers are `:queued`; the `:workers` with the
  `:last_error` of each; and the `:last_error` of all: a `Snakepit.Error` or `nil`.
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
  Changes the number of workers, or with a range the numbers between which it may change. Surplus workers end when no
  caller uses them, idle ones first.
  """
  @spec resize(pool(), pos_integer() | Range.t()) :: :ok
  def resize(pool, size) do
    {min, max} = bounds(size)
    Options.check!(max, Snakepit.Pool.Options.count(), :size)
    GenServer.call(pool, {:resize, min, max}, :infinity)
  end

  defp bounds(%Range{first: min, last: max, step: 1}) when 0 <= min and min <= max, do: {min, max}
  defp bounds(size), do: {size, size}

  @doc "Waits until every worker is ready."
  @spec await_ready(pool(), timeout()) :: :ok | {:error, Error.t()}
  def await_ready(pool, timeout \\ 15_000) do
    # In the caller, and not where it would take the pool down.
    Options.check!(timeout, :timeout, :timeout)
    GenServer.call(pool, {:await_ready, timeout}, :infinity)
  end

  @doc false
  def any?(_term), do: true
end
