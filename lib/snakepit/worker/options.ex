defmodule Snakepit.Worker.Options do
  @moduledoc false

  # What `Snakepit.Worker.start_link/1` was given, checked before anything starts, with defaults from
  # the configuration filled in.

  alias Snakepit.{Command, Config, HeartbeatMonitor, Launch, Options}

  # When its worker ends it. In other endings those decide, if the user does not.
  @stop_timeout 2_000

  @command Command.Schema.schema()

  @own [
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
    ],
    stdio: [
      type: {:or, [{:one_of, [:tail, :null, :inherit, :pipe]}, {:tagged, :file, :path, "path"}]},
      default: :tail,
      doc: """
      `:tail` keeps the end of the output; `:null`, `:inherit`, `{:file, path}`; `:pipe` is for talking to it
      """
    ],
    packet: [
      type: {:one_of, [:raw, :line, 4]},
      default: nil,
      shown: "`:raw`",
      doc:
        "how a `:pipe` is cut into packets: `:raw`, `:line`, or `4` for a length of 4 bytes before each"
    ],
    max_packet: [
      # What the length of a packet is kept in by the socket.
      type: {:integer, 1, 0x7FFFFFFF, "bytes"},
      default: 16_777_216,
      shown: "16 MiB",
      doc: "the longest line or packet of a `:pipe` in bytes; the worker ends over a longer one"
    ],
    answer_timeout: [
      type: {:milliseconds, 1},
      default: 30_000,
      doc: """
      how long the answer to a request may still come after its caller has given up; then the worker ends
      """
    ],
    output: [
      type:
        {:or, [{:one_of, [:quiet, :logger]}, {:tagged, :send, :pid, "pid"}, {:function, [1]}]},
      default: nil,
      shown: "`:quiet`",
      doc:
        "who gets what it writes: `:quiet`, `:logger`, `{:send, pid}`, or a function of one argument"
    ],
    ready: [
      type:
        {:or,
         [
           {:one_of, [nil]},
           {:tagged, :output, {:custom, &__MODULE__.pattern?/1, "a pattern"}, "pattern"},
           {:tagged, :tcp, {:integer, 1, 65_535}, "port"},
           {:tagged, :unix, :path, "path"},
           {:one_of, [:heartbeat]},
           {:function, [0, 1]}
         ]},
      default: nil,
      shown: "when it runs",
      doc: "when it counts as started, see below"
    ],
    ready_timeout: [type: {:milliseconds, 1}, default: 15_000, doc: "how long that may take"],
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
    on_guardian_down: [
      type: {:one_of, [:restart, :exit]},
      default: :restart,
      doc: "`:restart` or `:exit`; see below"
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

  # The lifeline is the worker's own business.
  @inherited Keyword.drop(@command, [:cmd, :lifeline | Keyword.keys(@own)])
  {stop, others} = Keyword.split(@inherited, [:stop_signal, :kill_mode])
  @schema Keyword.take(@command, [:cmd]) ++ @own ++ stop ++ others

  @derive {Inspect, only: [:id, :stdio]}
  @enforce_keys [:id, :command]
  defstruct [:owner, :command, :tail_bytes, :signal_scope, :stop_signal] ++
              for({key, entry} <- @own, key != :run_id_flag, do: {key, entry[:default]})

  @type t :: %__MODULE__{
          id: String.t(),
          command: Command.t(),
          name: GenServer.name() | nil,
          stdio: :tail | :null | :inherit | :pipe | {:file, Path.t()},
          packet: :raw | :line | 4 | nil,
          max_packet: pos_integer(),
          answer_timeout: pos_integer(),
          output: :quiet | :logger | {:send, pid()} | (String.t() -> term()),
          ready:
            nil
            | {:output, String.t() | Regex.t()}
            | {:tcp, :inet.port_number()}
            | {:unix, Path.t()}
            | :heartbeat
            | (() -> term())
            | (map() -> term()),
          ready_timeout: pos_integer(),
          stop_signal: Snakepit.Native.signal(),
          stop_timeout: non_neg_integer(),
          stop_order: :together | :supervisor,
          on_guardian_down: :restart | :exit,
          heartbeat: heartbeat() | nil,
          ping: (() -> term()) | (map() -> term()) | nil,
          tail_bytes: non_neg_integer(),
          signal_scope: :group | :process,
          owner: pid() | nil
        }

  @type heartbeat :: %{
          ping_interval: pos_integer(),
          timeout_threshold: pos_integer(),
          max_missed_heartbeats: pos_integer()
        }

  @doc "Checked options. Raises `ArgumentError`."
  @spec new!(keyword()) :: t()
  def new!(opts) do
    given = Options.validate!(opts, @schema)
    config = Config.current()
    # What is the command's alone is left out.
    options =
      struct(__MODULE__, given)
      |> struct(
        id: given.id || id(given.name),
        command: command(given),
        output: given.output || if(config.log_output, do: :logger, else: :quiet),
        stop_timeout: Map.get(given, :stop_timeout, @stop_timeout),
        heartbeat: heartbeat(given, config.heartbeat),
        tail_bytes: config.output_tail_bytes,
        signal_scope: if(config.process_group_kill, do: :group, else: :process)
      )

    agree!(options, given)
  end

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "How long a worker with these options, which are not checked yet, takes to end at most."
  @spec stop_timeout(keyword()) :: non_neg_integer()
  def stop_timeout(opts) do
    case Keyword.get(opts, :stop_timeout, @stop_timeout) do
      timeout when is_integer(timeout) -> timeout
      _wrong -> @stop_timeout
    end
  end

  # The log, the ledger and `Snakepit.workers/0` then say what its owner calls it.
  defp id(name) when is_atom(name) and name != nil, do: inspect(name)
  defp id(_none_or_elsewhere), do: Launch.unique_id("worker")

  @doc "What is to be connected: see `Snakepit.Launch`."
  @spec plan(t()) :: Launch.plan()
  def plan(%__MODULE__{} = options) do
    %{
      id: options.id,
      command: options.command,
      stdio: connection(options),
      lifeline: options.heartbeat != nil and options.ping == nil
    }
  end

  # Output that somebody wants to see passes through the BEAM. Errors belong to it, except where it is
  # a channel with a format of its own.
  defp connection(%{stdio: :pipe} = options), do: {:pipe, socket_options(options)}
  defp connection(%{output: :quiet, ready: ready}) when not is_tuple(ready), do: nil
  defp connection(%{output: :quiet, ready: {kind, _}}) when kind != :output, do: nil
  defp connection(%{stdio: :tail}), do: {:stream, socket_options(%{packet: :line})}
  # `:log_output` of the configuration is no reason to refuse those that write elsewhere.
  defp connection(_options), do: nil

  # Lines are cut by `Snakepit.Output.Lines`.
  defp socket_options(%{packet: 4, max_packet: limit}), do: [packet: 4, packet_size: limit]
  defp socket_options(_raw_or_line), do: [packet: :raw, buffer: 65_536]

  defp command(given) do
    stdio = if given.stdio == :pipe, do: :null, else: given.stdio
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
    if options.packet && options.stdio != :pipe,
      do: Options.mismatch!(:packet, "given only with stdio: :pipe", options.packet)

    if options.stdio not in [:tail, :pipe] and given.output not in [nil, :quiet] do
      expected = ":tail or :pipe, so that there is something to :output"
      Options.mismatch!(:stdio, expected, options.stdio)
    end

    if options.stdio not in [:tail, :pipe] and match?({:output, _}, options.ready) do
      expected = ":tail or :pipe, so that :ready can see the output"
      Options.mismatch!(:stdio, expected, options.stdio)
    end

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
  def pattern?(pattern), do: is_struct(pattern, Regex) or (is_binary(pattern) and pattern != "")
end
