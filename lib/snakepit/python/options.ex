defmodule Snakepit.Python.Options do
  @moduledoc false

  # The options of a Python pool, and what they are for `Snakepit.Pool`.

  alias Snakepit.{Error, Options, Pool, Worker}
  alias Snakepit.Python.{Codec, Commands, Environment, Exports, Protocol, Side}

  # Its own; those of `Snakepit.Pool` follow.
  @own [
    name: [type: :name, required: true, doc: "what callers know it by"],
    python: [
      type: {:custom, &Environment.valid?/1, Environment.expected()},
      default: :system,
      doc: """
      which Python: `:system`, the path of an interpreter, `{:venv, directory}` or `{:uv, options}`; see
      [Environments](#module-environments)
      """
    ],
    init: [
      type: {:or, [:text, {:one_of, [""]}]},
      default: "",
      shown: "nothing",
      doc: "Python code that each worker runs first; the names that it defines can be called"
    ],
    init_timeout: [
      type: :timeout,
      default: 60_000,
      doc: "how long that may take"
    ],
    path: [
      type: {:custom, &__MODULE__.paths?/1, "a list of directories"},
      default: [],
      doc: "directories in which modules are looked for first"
    ],
    exports: [
      type: {:custom, &Exports.valid?/1, "a list of {module, functions} or {name, function}"},
      default: [],
      doc: "functions that Python may call: see [From Python](#module-from-python)"
    ],
    concurrency: [
      type: {:integer, 1, 65_536, "calls"},
      default: 1,
      doc: "how many `async` functions run beside each other in one worker"
    ],
    interrupt_timeout: [
      type: {:milliseconds, 1},
      default: 1_000,
      doc: """
      how long a call may take to end when it has been interrupted, before its worker is replaced
      """
    ],
    log_level: [
      type: {:one_of, [:debug, :info, :warning, :error, :critical, nil]},
      default: :info,
      doc: "what of Python's `logging` goes to `Logger`; `nil` if nothing does"
    ],
    output: [
      type: {:or, [{:one_of, [:tail, :null, :inherit]} | Snakepit.Output.Sink.types()]},
      default: :tail,
      doc: "where `print` and standard error lead, as `:stderr` of `Snakepit.Worker`"
    ],
    env: [
      type: {:custom, &__MODULE__.env?/1, "a list or map of names and values"},
      default: [],
      doc: "environment variables"
    ],
    worker: [
      type: :keyword,
      default: [],
      doc: "other options of `Snakepit.Worker`, such as `:rlimits`, `:user` or `:heartbeat`"
    ]
  ]

  # What the protocol and the pool decide.
  @ours [
    :worker,
    :warm_up,
    :warm_up_timeout,
    :name
  ]
  @protocol [
    :cmd,
    :stdio,
    :packet,
    :tag,
    :in_flight,
    :output,
    :stderr,
    :on_late,
    :env,
    :answer_timeout
  ]

  @schema @own ++ Keyword.drop(Pool.Options.schema(), @ours)

  @boot "from snakepit_bridge.serve import main; main()"

  @doc "The schema of these options."
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "The schema of those that are not those of a pool."
  @spec own() :: Options.schema()
  def own, do: @own

  @doc "Checked options. Raises `ArgumentError`."
  @spec new!(keyword()) :: map()
  def new!(given) do
    opts = Options.validate!(given, @schema)

    for key <- @protocol, Keyword.has_key?(opts.worker, key) do
      Options.mismatch!(
        :worker,
        "options without #{inspect(key)}, which Python needs",
        opts.worker
      )
    end

    opts
  end

  @doc "The options of the pool. Makes the environment, if there is none."
  @spec pool(keyword(), map()) :: {:ok, keyword()} | {:error, Error.t()}
  def pool(given, opts) do
    with {:ok, python} <- Environment.interpreter(opts.python),
         {:ok, packet, []} <- init(opts) do
      own =
        Keyword.take(given, Keyword.keys(Pool.Options.schema()) -- @ours) ++
          [
            name: opts.name,
            worker: {Commands, worker(python, opts)},
            warm_up: {__MODULE__, :warm_up, [packet, opts.init_timeout]},
            # The request has its own time, and says what it was that took so long.
            warm_up_timeout: longer(opts.init_timeout)
          ]

      # Found before anything starts.
      Pool.Options.complete!(own)
      {:ok, own}
    end
  end

  defp longer(:infinity), do: :infinity
  defp longer(timeout), do: timeout + 10_000

  defp init(opts) do
    Protocol.init(opts.init, %{
      path: Enum.map(opts.path, &Path.expand/1),
      memory_from: Codec.memory_from(),
      concurrency: opts.concurrency,
      log_level: opts.log_level && to_string(opts.log_level)
    })
  end

  defp worker(python, opts) do
    [
      cmd: [python, "-c", @boot],
      env: env(opts),
      stdio: :pipe,
      packet: 4,
      max_packet: 0x7FFFFFFF,
      tag: {:bytes, Protocol.tag_bytes()},
      in_flight: opts.concurrency,
      answer_timeout: opts.interrupt_timeout,
      on_late: &Side.cancel/1,
      output: opts.exports |> Exports.new!() |> Side.hear(),
      stderr: opts.output
    ] ++ Keyword.merge([run_id_flag: "--run-id", heartbeat: true], opts.worker)
  end

  defp env(opts) do
    given = Enum.map(opts.env, fn {name, value} -> {to_string(name), value} end)
    inherited = System.get_env("PYTHONPATH")
    path = with nil <- List.keyfind(given, "PYTHONPATH", 0), do: {"PYTHONPATH", inherited}
    bridge = Application.app_dir(:snakepit, "priv/python")
    path = [bridge, elem(path, 1)] |> Enum.reject(&(&1 in [nil, ""])) |> Enum.join(":")
    List.keystore(given, "PYTHONPATH", 0, {"PYTHONPATH", path})
  end

  @doc false
  @spec warm_up(pid(), binary(), timeout()) :: :ok | {:error, Error.t()}
  def warm_up(worker, packet, timeout) do
    with {:ok, answer} <- Worker.request(worker, packet, timeout) do
      case Protocol.answer(answer) do
        {:ok, [_os_pid, _version, _path], []} -> :ok
        {:raised, error} -> not_ready("its :init has raised #{Exception.message(error)}", error)
        {:error, error} -> {:error, error}
        other -> not_ready("it has answered #{inspect(other)}", nil)
      end
    end
  end

  defp not_ready(detail, error) do
    trace = if error && error.traceback not in [nil, ""], do: "\n" <> error.traceback, else: ""
    {:error, %Error{operation: :warm_up, reason: :not_ready, detail: detail <> trace}}
  end

  @doc false
  def paths?(given), do: is_list(given) and Enum.all?(given, &(is_binary(&1) and &1 != ""))

  @doc false
  def env?(given) when is_map(given), do: env?(Map.to_list(given))
  def env?(given), do: is_list(given) and Enum.all?(given, &match?({_name, _value}, &1))
end
