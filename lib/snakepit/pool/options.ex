defmodule Snakepit.Pool.Options do
  @moduledoc false

  # The options of `Snakepit.Pool.start_link/1`, and of each pool in the configuration.

  alias Snakepit.{Options, Worker}

  # More is a mistake, and would take all processes that a BEAM may have.
  @most 65_536
  @count {:integer, 1, @most}

  # A launch is a few messages to the guardian, and most of it is waiting. More than this at a time only makes
  # each of them later.
  @launches_per_scheduler 8

  @schema [
    size: [
      type: @count,
      default: nil,
      doc:
        "how many workers, if that does not change: `:min` and `:max` at once; #{@most} at most"
    ],
    min: [
      type: {:integer, 0, @most},
      default: nil,
      shown: "`:size`, or 1",
      doc: "how many workers there are at least, also when nobody uses them"
    ],
    max: [
      type: @count,
      default: nil,
      shown: "`:size`",
      doc: "how many workers there are at most, when callers would wait otherwise"
    ],
    worker: [
      type: {:custom, &__MODULE__.worker/1, "the options of a worker"},
      required: true,
      doc: """
      the options of `Snakepit.Worker`, but for `:id` and `:name`; or `{module, options}` for workers of another kind, see
      `Snakepit.Adapter`
      """
    ],
    name: [type: :name, default: nil, doc: "a name, as for `GenServer`"],
    id: [
      type: :text,
      default: nil,
      shown: "the name, or generated",
      doc: "what the workers' ids begin with"
    ],
    idle_timeout: [
      type: :timeout,
      default: 60_000,
      doc: "how long a worker beyond `:min` is kept that nobody uses"
    ],
    max_queue: [
      type: {:or, [{:integer, 0, @most}, {:one_of, [:infinity]}]},
      default: :infinity,
      doc: "how many callers may wait; those for whom a worker is being started do not count"
    ],
    max_requests: [
      type: {:or, [@count, {:one_of, [:infinity]}]},
      default: :infinity,
      doc: "how often a worker is lent before another takes its place"
    ],
    max_age: [
      type: {:or, [{:milliseconds, 1}, {:one_of, [:infinity]}]},
      default: :infinity,
      doc: "how many milliseconds a worker is used before another takes its place"
    ],
    max_memory: [
      type: {:or, [{:integer, 1, :infinity, "bytes"}, {:one_of, [:infinity]}]},
      default: :infinity,
      doc:
        "how many bytes of memory a worker's process and all that it has started may use before another takes its place"
    ],
    memory_interval: [
      type: {:milliseconds, 1},
      default: 5_000,
      doc: "how often that memory is measured"
    ],
    warm_up: [
      type:
        {:or, [{:function, [1]}, {:custom, &__MODULE__.mfa?/1, "{module, function, arguments}"}]},
      default: nil,
      doc: "a function that is called with each worker before it counts as ready, see below"
    ],
    warm_up_timeout: [type: :timeout, default: 60_000, doc: "how long that may take"],
    max_keys: [
      type: {:integer, 1, :infinity},
      default: 10_000,
      doc:
        "how many keys have a worker of their own; then the one that was not used for longest is forgotten"
    ],
    launches: [
      type: @count,
      default: nil,
      shown: "#{@launches_per_scheduler} for each scheduler",
      doc: "how many processes are launched at a time"
    ],
    launch_timeout: [
      type: {:milliseconds, 1},
      default: 5_000,
      doc: "after how long the pool does not wait for a launch any more, nor do other launches"
    ],
    max_restarts: [
      type: {:integer, 1, :infinity},
      default: nil,
      shown: "`:max`, but at least 3",
      doc: "the restart budget, see below"
    ],
    max_seconds: [
      type: {:integer, 1, :infinity, "seconds"},
      default: 5,
      doc: "the time in which that many restarts are allowed"
    ]
  ]

  @doc "The schema of these options."
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "The type of a number of workers."
  @spec count() :: Options.Type.t()
  def count, do: @count

  @doc """
  Returns checked options, with `:min` and `:max`. Raises `ArgumentError`; `context` says where they are from.
  """
  @spec new!(keyword(), String.t()) :: map()
  def new!(given, context \\ "") do
    opts = Options.validate!(given, @schema, context)
    {worker, adapter} = resolve(opts.worker)
    opts = Map.merge(opts, %{worker: worker, adapter: adapter})

    case opts do
      %{size: nil, max: nil} ->
        raise ArgumentError, at(context) <> "a pool needs a :size, or a :max"

      %{size: nil} ->
        least(%{opts | min: opts.min || 1}, context)

      %{size: size, min: nil, max: nil} ->
        %{opts | min: size, max: size}

      %{size: size} ->
        raise ArgumentError,
              at(context) <>
                "expected either :size or :min and :max, got: all of them, :size #{size}"
    end
  end

  defp least(%{min: min, max: max} = opts, _context) when min <= max, do: opts

  defp least(%{min: min, max: max}, context),
    do:
      raise(ArgumentError, at(context) <> "expected :min to be at most :max, #{max}, got: #{min}")

  defp at(""), do: ""
  defp at(context), do: context <> ": "

  @doc "Checks the options of a pool and of its workers, before anything starts. Raises `ArgumentError`."
  @spec complete!(keyword()) :: map()
  def complete!(given) do
    opts = new!(given)
    Worker.Options.new!(opts.worker)
    opts
  end

  @doc "Returns what `Snakepit.Pool.Roster` decides by."
  @spec limits(map()) :: map()
  def limits(opts) do
    opts
    |> Map.take([
      :min,
      :max,
      :idle_timeout,
      :max_queue,
      :max_requests,
      :max_age,
      :max_memory,
      :memory_interval,
      :warm_up_timeout,
      :max_keys,
      :launch_timeout
    ])
    |> Map.merge(%{
      launches: opts.launches || @launches_per_scheduler * System.schedulers_online(),
      warm_up?: opts.warm_up != nil,
      max_restarts: opts.max_restarts || max(opts.max, 3),
      max_restarts_ms: opts.max_seconds * 1_000
    })
  end

  @doc "Returns the options of each worker, and the adapter of workers of another kind."
  @spec resolve(keyword() | {module(), keyword()}) :: {keyword(), module() | nil}
  def resolve({module, opts}), do: {module.worker_options(opts), module}
  def resolve(opts), do: {opts, nil}

  @doc false
  def worker({module, opts}) do
    if is_atom(module) and Code.ensure_loaded?(module) and
         function_exported?(module, :worker_options, 1),
       do: worker(opts),
       else: {"{module, options} with a module that is a Snakepit.Adapter", module}
  end

  def worker(opts) do
    with true <- Keyword.keyword?(opts) do
      case for key <- [:id, :name], Keyword.has_key?(opts, key), do: key do
        [] -> true
        [key | _] -> {"options without #{inspect(key)}", opts}
      end
    end
  end

  # For configurations that cannot have functions.
  @doc false
  def mfa?({module, function, arguments}),
    do: is_atom(module) and is_atom(function) and is_list(arguments)

  def mfa?(other), do: other == nil
end
