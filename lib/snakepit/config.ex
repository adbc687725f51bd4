defmodule Snakepit.Config do
  alias Snakepit.{HeartbeatMonitor, Metrics, Options, Pool, Worker}
  alias Snakepit.Build.Settings
  alias Snakepit.Cleanup.Hook

  @monitor HeartbeatMonitor.schema()

  @schema [
    data_dir: [
      type: :path,
      default: nil,
      shown: "see below",
      doc: "where runs are recorded; a directory on a local disk"
    ],
    allow_network_data_dir: [
      type: :boolean,
      default: false,
      doc: "whether that may be on NFS, FUSE and the like, which this host alone uses"
    ],
    instance: [
      type:
        {:custom, &__MODULE__.instance?/1,
         "1 to 64 letters, digits, dots, dashes and underscores"},
      default: nil,
      shown: "the data directory's own",
      doc: "what keeps this application's processes apart from others'"
    ],
    library_mode: [
      type: :boolean,
      default: true,
      doc: "say nothing on the terminal; `false` for a program that owns it"
    ],
    log_level: [
      type: {:one_of, [:debug, :info, :warning, :error, :none]},
      default: :warning,
      doc: "the least level of the guardian's lines that reach `Logger`"
    ],
    log_output: [
      type: :boolean,
      default: false,
      doc: "log what workers write, unless their `:output` says otherwise"
    ],
    cleanup_on_stop: [
      type: :boolean,
      default: true,
      doc: "whether the stop of the application ends what is left"
    ],
    cleanup_on_stop_timeout_ms: [
      type: :milliseconds,
      default: 3_000,
      doc:
        "how many milliseconds processes without a `:stop_timeout` have to end then, before SIGKILL"
    ],
    cleanup_poll_interval_ms: [
      type: {:milliseconds, 1},
      default: 50,
      doc: """
      nothing reads it, because each system that Snakepit runs on notifies of the end of a process; the key
      is one that users of the earlier Snakepit know
      """
    ],
    cleanup_retry_interval_ms: [
      type: :milliseconds,
      default: 100,
      doc: "how long to wait before another attempt to end a process whose owner has died"
    ],
    cleanup_max_retries: [
      type: {:integer, 0, :infinity},
      default: 20,
      doc: "how many such attempts there are"
    ],
    process_group_kill: [
      type: :boolean,
      default: true,
      doc: "whether workers' signals go to their group, or to the process alone"
    ],
    graceful_shutdown_timeout_ms: [
      type: :milliseconds,
      default: 2_000,
      doc: "how many milliseconds orphans of earlier runs have to end, before SIGKILL"
    ],
    force_kill_timeout_ms: [
      type: {:milliseconds, 1},
      default: 5_000,
      doc: "how many milliseconds the kernel may take to carry out SIGKILL"
    ],
    heartbeat: [
      type:
        {:options,
         [
           enabled: [
             type: :boolean,
             default: false,
             doc: "whether workers without a `:heartbeat` option have heartbeats"
           ],
           ping_interval_ms: @monitor[:ping_interval],
           timeout_threshold_ms: @monitor[:timeout_threshold],
           max_missed_heartbeats: @monitor[:max_missed_heartbeats]
         ]},
      default: [],
      doc: "for workers that do not say otherwise, see `Snakepit.HeartbeatMonitor`:"
    ],
    watchdog: [
      type:
        {:options,
         [
           grace_period_ms: [
             type: :milliseconds,
             default: 3_000,
             doc:
               "how many milliseconds processes without a `:stop_timeout` have to end, before SIGKILL"
           ]
         ]},
      default: [],
      doc: "what the guardian does when the BEAM is gone:"
    ],
    audit_interval_ms: [
      type: {:milliseconds, 1},
      default: 30_000,
      doc: "how often registry, guardian and process table are compared"
    ],
    history: [
      type:
        {:options,
         [keep: [type: {:integer, 0, :infinity}, default: 50, doc: "how many are remembered"]]},
      default: [],
      doc: "the runs that have ended:"
    ],
    metrics: [
      type:
        {:options,
         [enabled: [type: :boolean, default: false, doc: "whether anything is counted"]] ++
           Metrics.schema()},
      default: [],
      doc: "for Prometheus and others, see `Snakepit.Metrics`:"
    ],
    native: [
      type: {:options, Settings.schema()},
      default: [],
      doc:
        "where `mix compile` has native code from, see `mix help compile.snakepit_native`; not read at run time:"
    ],
    notify: [
      type: {:one_of, [false, true, :manual]},
      default: false,
      doc: """
      whether the service manager is told when the application is ready and when it stops; with `:manual` the application
      says itself that it is ready, see `Snakepit.ServiceManager`
      """
    ],
    before_reap: [
      type: {:or, [{:one_of, [nil]}, {:custom, &Hook.mfa?/1, "{module, function, arguments}"}]},
      default: nil,
      doc:
        "`{module, function, arguments}`, called at the start before orphans of earlier runs are ended"
    ],
    after_reap: [
      type: {:or, [{:one_of, [nil]}, {:custom, &Hook.mfa?/1, "{module, function, arguments}"}]},
      default: nil,
      doc: "the same, called afterwards, before anything may be started"
    ],
    reap_hook_timeout_ms: [
      type: {:milliseconds, 1},
      default: 5_000,
      doc:
        "how many milliseconds each of these two may take; then it is killed, and the start goes on"
    ],
    output_tail_bytes: [
      type: {:integer, 0, :infinity, "bytes"},
      default: 65_536,
      doc: "how much of each process's last output is kept"
    ],
    cluster: [
      type:
        {:options,
         [
           visible: [
             type: :boolean,
             default: false,
             doc: "whether this node can be seen from others, and sees them: `Snakepit.Cluster`"
           ],
           members: [
             type:
               {:custom, &__MODULE__.members?/1,
                "a list of names of three or more nodes, or an empty one"},
             default: [],
             doc:
               "the nodes that grant leases: the same, in any order, on each node; an odd number of them"
           ],
           lease: [
             type: {:integer, 1_000, 600_000, "milliseconds"},
             default: 5_000,
             doc: "how many milliseconds a lease lasts: the same on each node"
           ]
         ]},
      default: [],
      doc:
        "for `Snakepit.Cluster` and `Snakepit.Cluster.Singleton`; by default nothing of it runs:"
    ],
    pools: [
      type: {:custom, &__MODULE__.pools?/1, "a list of options of pools"},
      default: [],
      doc: """
      pools that start and end with Snakepit: for each the options of `Snakepit.Pool.start_link/1`, with a `:name`
      """
    ],
    python_environments: [
      type: {:custom, &is_list/1, "a list of environments"},
      default: [],
      doc: "what `mix snakepit.python.setup` makes"
    ]
  ]

  @moduledoc """
  The keys of `config :snakepit, ...`. They are checked when the application starts: an unknown key or a value of
  the wrong type stops the start with an error that names it.

  #{Options.docs(@schema)}
  ## The data directory

  Runs are recorded in the data directory. The next start has to find the same directory, because it ends what the
  last one has left behind. It is the first of these:

    1. `config :snakepit, data_dir: path`
    2. the variable `SNAKEPIT_DATA_DIR`
    3. `snakepit` in the first directory of `STATE_DIRECTORY`, which systemd sets for a service with
       `StateDirectory=`
    4. `$XDG_STATE_HOME/snakepit/<application>`, `$HOME/.local/state/snakepit/<application>`,
       `/var/tmp/snakepit-<uid>/<application>`, and the same in the temporary directory: the one that was
       used before, or else the first that can be made

  A directory that is named (1 to 3) is used or refused; no other is tried then. Several BEAMs of one user may share a
  directory.

  Only this user and root may be able to write there. If others may, as on most volumes of Kubernetes, the
  directory `snakepit-<uid>` is made in it with mode 0700, and used instead. A run that others can have
  written to is not read. Do not copy a data directory while it is in use: both would be the same instance.
  """

  @typedoc "The whole configuration."
  @type t :: %{
          data_dir: Path.t() | nil,
          allow_network_data_dir: boolean(),
          instance: String.t() | nil,
          library_mode: boolean(),
          log_level: :debug | :info | :warning | :error | :none,
          log_output: boolean(),
          cleanup_on_stop: boolean(),
          cleanup_on_stop_timeout_ms: non_neg_integer(),
          cleanup_poll_interval_ms: pos_integer(),
          cleanup_retry_interval_ms: non_neg_integer(),
          cleanup_max_retries: non_neg_integer(),
          process_group_kill: boolean(),
          graceful_shutdown_timeout_ms: non_neg_integer(),
          force_kill_timeout_ms: pos_integer(),
          heartbeat: %{
            enabled: boolean(),
            ping_interval_ms: pos_integer(),
            timeout_threshold_ms: pos_integer(),
            max_missed_heartbeats: pos_integer()
          },
          watchdog: %{grace_period_ms: non_neg_integer()},
          audit_interval_ms: pos_integer(),
          history: %{keep: non_neg_integer()},
          metrics: %{
            enabled: boolean(),
            max_groups: pos_integer(),
            group_by: (String.t() -> String.t()) | nil
          },
          native: %{precompiled: String.t() | nil, checksums: Path.t() | nil},
          notify: boolean() | :manual,
          before_reap: {module(), atom(), [term()]} | nil,
          after_reap: {module(), atom(), [term()]} | nil,
          reap_hook_timeout_ms: pos_integer(),
          output_tail_bytes: non_neg_integer(),
          cluster: %{visible: boolean(), members: [node()], lease: pos_integer()},
          pools: [keyword()]
        }

  @doc """
  Returns the whole configuration with defaults filled in, as a map. Raises `ArgumentError`.

      iex> config = Snakepit.Config.validate!(watchdog: [grace_period_ms: 500])
      iex> config.watchdog.grace_period_ms
      500
      iex> Snakepit.Config.validate!(watchdog: [grace: 500])
      ** (ArgumentError) config :snakepit, :watchdog: unknown option :grace, expected one of [:grace_period_ms]

  """
  @spec validate!(keyword()) :: t()
  def validate!(given) do
    # Mix puts this one into every application's environment.
    given = if is_list(given), do: List.keydelete(given, :included_applications, 0), else: given
    config = Options.validate!(given, @schema, "config :snakepit")
    check_pools!(config.pools)
    %{config | data_dir: config.data_dir && Path.expand(config.data_dir)}
  end

  @doc """
  Returns the configuration that the application was started with. It is kept, because checking it would take longer
  than starting a process may.
  """
  @spec current() :: t()
  def current, do: :persistent_term.get(__MODULE__, nil) || fetch!()

  @doc false
  @spec keep(t()) :: :ok
  def keep(config), do: :persistent_term.put(__MODULE__, config)

  @doc "Reads and checks the configuration of the application."
  @spec fetch!() :: t()
  def fetch!, do: :snakepit |> Application.get_all_env() |> validate!()

  # What workers take from the rest of the configuration is added when they start.
  defp check_pools!(pools) do
    for pool <- pools, reduce: [] do
      names ->
        context = "config :snakepit, :pools, #{inspect(pool[:name])}"
        opts = Pool.Options.new!(pool, context)
        Options.validate!(opts.worker, Worker.Options.schema(), context <> ", :worker")

        if opts.name == nil or opts.name in names,
          do: Options.mismatch!(:name, "a name that no other of the :pools has", opts.name)

        [opts.name | names]
    end
  end

  @doc false
  def pools?(pools), do: is_list(pools) and Enum.all?(pools, &Keyword.keyword?/1)

  # Of two nodes none is a majority when they do not hear each other.
  @doc false
  def members?(members) do
    is_list(members) and Enum.all?(members, &(is_atom(&1) and &1 not in [nil, :nonode@nohost])) and
      Enum.uniq(members) == members and length(members) not in [1, 2]
  end

  # It goes into the environment of every process.
  @doc false
  def instance?(name), do: is_binary(name) and name =~ ~r/\A[[:alnum:]_.-]{1,64}\z/
end
