defmodule Snakepit.Worker.Options do
  @moduledoc false

  # The options of `Snakepit.Worker.start_link/1`, checked before anything starts and completed from the
  # configuration.

  alias Snakepit.{Command, Config, HeartbeatMonitor, Launch, Options}
  alias Snakepit.Output.{File, Sink}
  alias Snakepit.Worker.Options.Streams
  alias Snakepit.Worker.Terminal

  # When its worker ends it. In other endings those decide, if the user does not.
  @stop_timeout 2_000

  @command Command.Schema.schema()

  @names [
    id: [
      type: :text,
      default: nil,
      shown: "its `:name`, or generated",
      doc: "worker id, by which it is recorded"
    ],
    name: [type: :name, default: nil, doc: "a name for the BEAM process, as for `GenServer`"],
    run_id_flag: [
      type: :text,
      default: nil,
      doc: """
      such as `"--run-id"`, to put flag and run id at the end of the arguments; otherwise the run id is only
      in the environment
      """
    ]
  ]

  @life [
    ready: [
      type:
        {:or,
         [
           {:one_of, [nil]},
           {:tagged, :output, {:custom, &__MODULE__.pattern?/1, "a pattern"}, "pattern"},
           {:tagged, :tcp, {:integer, 1, 65_535}, "port"},
           {:tagged, :unix, :path, "path"},
           {:one_of, [:heartbeat, :notify]},
           {:function, [0, 1]}
         ]},
      default: nil,
      shown: "when it runs",
      doc: "when it counts as started, see below"
    ],
    ready_timeout: [
      type: {:milliseconds, 1},
      default: 15_000,
      doc: "how long that may take"
    ],
    heartbeat: [
      type: {:or, [:boolean, :keyword]},
      default: nil,
      shown: "as configured",
      doc: """
      `true`, `false`, or `:ping_interval`, `:timeout_threshold` and `:max_missed_heartbeats`, see
      `Snakepit.HeartbeatMonitor`
      """
    ],
    ping: [
      type: {:function, [0, 1]},
      default: nil,
      doc: "a function that asks it for a sign of life, instead of the lifeline"
    ],
    client: [
      type: {:or, [{:one_of, [nil]}, {:custom, &__MODULE__.client?/1, "{module, options}"}]},
      default: nil,
      doc: """
      `{module, options}`: a process that talks to it, which workers of other kinds have, such as `Snakepit.GRPCWorker`
      """
    ],
    watchdog: [
      type: {:or, [{:one_of, [nil]}, {:milliseconds, 1}]},
      default: nil,
      doc: """
      milliseconds within which it has to say `WATCHDOG=1` again and again, as `sd_notify(3)` does; otherwise it is ended as
      one without heartbeats
      """
    ],
    on_guardian_down: [
      type: {:one_of, [:restart, :exit]},
      default: :restart,
      doc: "`:restart` or `:exit`; see below"
    ],
    stop_command: [
      type:
        {:or,
         [
           {:one_of, [nil]},
           {:custom, &Command.Schema.cmd/1, "a list of a program and its arguments"}
         ]},
      default: nil,
      doc: "`[program | args]` that asks it to end, instead of a signal, see below"
    ],
    stop_order: [
      type: {:one_of, [:together, :supervisor]},
      default: :together,
      doc:
        "`:together` or `:supervisor`: when it is asked to end as its application stops, see below"
    ],
    # No default, as only a worker that is given one has it in every ending.
    stop_timeout:
      @command[:stop_timeout]
      |> Keyword.delete(:default)
      |> Keyword.merge(
        shown: "#{@stop_timeout} ms",
        doc: "how long it is given to end, see below"
      )
  ]

  @own @names ++ Streams.schema() ++ @life

  # The lifeline is the worker's own business.
  @inherited Keyword.drop(@command, [:cmd, :lifeline | Keyword.keys(@own)])
  {stop, others} =
    Keyword.split(@inherited, [:stop_signal, :kill_mode, :abort_signal, :abort_timeout])

  @schema Keyword.take(@command, [:cmd]) ++ @own ++ stop ++ others

  @derive {Inspect, only: [:id, :stdio]}
  @enforce_keys [:id, :command]
  defstruct [:owner, :command, :tail_bytes, :signal_scope, :stop_signal] ++
              for({key, entry} <- @own, key != :run_id_flag, do: {key, entry[:default]})

  @type t :: %__MODULE__{
          id: String.t(),
          command: Command.t(),
          name: GenServer.name() | nil,
          stdio: :tail | :null | :inherit | :pipe | Terminal.t() | file(),
          packet: :raw | :line | 1 | 2 | 4 | nil,
          max_packet: pos_integer(),
          in_flight: pos_integer(),
          tag: {:bytes, 1..8} | nil,
          answer_timeout: pos_integer(),
          output: Sink.to() | :read,
          active: true | :once | pos_integer() | nil,
          linger: non_neg_integer(),
          stderr: Sink.to() | :tail | :merge | :null | :inherit | :read,
          ready:
            nil
            | {:output, String.t() | Regex.t()}
            | {:tcp, :inet.port_number()}
            | {:unix, Path.t()}
            | :heartbeat
            | :notify
            | :client
            | (() -> term())
            | (map() -> term()),
          ready_timeout: pos_integer(),
          stop_signal: Snakepit.Native.signal(),
          stop_timeout: non_neg_integer(),
          stop_command: [String.t(), ...] | nil,
          stop_order: :together | :supervisor,
          on_guardian_down: :restart | :exit,
          heartbeat: heartbeat() | nil,
          watchdog: pos_integer() | nil,
          client: Snakepit.Worker.Client.spec() | nil,
          ping: (() -> term()) | (map() -> term()) | nil,
          tail_bytes: non_neg_integer(),
          signal_scope: :group | :process,
          owner: pid() | nil
        }

  @type file ::
          {:file, Path.t()} | {:file, Path.t(), :truncate} | {:passed_file, Path.t(), boolean()}

  @type heartbeat :: %{
          ping_interval: pos_integer(),
          timeout_threshold: pos_integer(),
          max_missed_heartbeats: pos_integer()
        }

  @doc "Checked options. Raises `ArgumentError`."
  @spec new!(keyword()) :: t()
  def new!(opts) do
    given =
      opts
      |> Options.validate!(@schema)
      |> Terminal.prepare(opts)
      |> Map.update!(:stdio, &File.prepare/1)

    config = Config.current()
    # What is the command's alone is left out.
    options =
      struct(__MODULE__, given)
      |> struct(
        id: given.id || id(given.name),
        command: command(given),
        ready: if(given.client, do: :client, else: given.ready),
        output: given.output || if(config.log_output, do: :logger, else: :quiet),
        stderr: given.stderr || if(given.stdio == :pipe, do: :tail, else: :merge),
        stop_timeout: Map.get(given, :stop_timeout, @stop_timeout),
        heartbeat: heartbeat(given, config.heartbeat),
        tail_bytes: config.output_tail_bytes,
        signal_scope: if(config.process_group_kill, do: :group, else: :process)
      )

    options
    |> Map.update!(:output, &Sink.prepare(&1, options.id))
    |> Map.update!(:stderr, &Sink.prepare(&1, options.id))
    |> agree!(given)
  end

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "Returns how long a worker with these options, which are not checked yet, may take to end."
  @spec stop_timeout(keyword()) :: non_neg_integer()
  def stop_timeout(opts) do
    abort? = Keyword.get(opts, :abort_signal) != nil
    default = @command[:abort_timeout][:default]

    integer(opts, :stop_timeout, @stop_timeout) +
      if(abort?, do: integer(opts, :abort_timeout, default), else: 0)
  end

  defp integer(opts, key, default) do
    value = Keyword.get(opts, key, default)
    if is_integer(value), do: value, else: default
  end

  # The log, the ledger and `Snakepit.workers/0` then say what its owner calls it.
  defp id(name) when is_atom(name) and name != nil, do: inspect(name)
  defp id(_none_or_elsewhere), do: Launch.unique_id("worker")

  @doc "Returns the plan of a launch: see `Snakepit.Launch`."
  @spec plan(t(), [{String.t(), String.t()}]) :: Launch.plan()
  def plan(%__MODULE__{} = options, variables) do
    env = Enum.to_list(options.command.env) ++ variables

    %{
      id: options.id,
      command: %{options.command | stdio: Streams.stdio(options), env: env},
      lifeline: options.heartbeat != nil and options.ping == nil and options.client == nil
    }
  end

  defp command(given) do
    # Until it is known where they lead, see `plan/1`.
    stdio = if Streams.passed?(given.stdio), do: :null, else: given.stdio
    flag = if given.run_id_flag, do: [given.run_id_flag, Snakepit.run_id()], else: []
    struct(Command, %{given | stdio: stdio, cmd: given.cmd ++ flag})
  end

  defp heartbeat(%{heartbeat: false}, _config), do: nil
  defp heartbeat(%{heartbeat: nil, ping: nil}, %{enabled: false}), do: nil

  defp heartbeat(%{heartbeat: given}, config) do
    defaults = [
      ping_interval: config.ping_interval_ms,
      timeout_threshold: config.timeout_threshold_ms,
      max_missed_heartbeats: config.max_missed_heartbeats
    ]

    given = if is_list(given), do: given, else: []
    schema = Options.put_defaults(HeartbeatMonitor.schema(), defaults)
    Options.validate!(given, schema, ":heartbeat")
  end

  defp agree!(options, given) do
    Streams.agree!(options, given)

    if options.ready == :heartbeat and options.heartbeat == nil,
      do:
        Options.mismatch!(
          :ready,
          "something other than :heartbeat without heartbeats",
          :heartbeat
        )

    if options.ping && options.heartbeat == nil,
      do: Options.mismatch!(:heartbeat, "true or its options, as there is a :ping", false)

    options
  end

  @doc false
  def client?({module, _opts}), do: is_atom(module)
  def client?(_other), do: false

  @doc false
  def pattern?(pattern), do: is_struct(pattern, Regex) or (is_binary(pattern) and pattern != "")
end
