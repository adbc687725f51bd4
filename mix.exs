defmodule Snakepit.MixProject do
  use Mix.Project

  @version "0.1.0"
  @no_tests ["test/chaos/", "test/fixtures/", "test/places/", "test/soak/"]

  def project do
    [
      app: :snakepit,
      version: @version,
      elixir: "~> 1.14",
      # Last: the compiler is one of this project's own modules.
      compilers: Mix.compilers() ++ [:snakepit_native],
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: [],
      test_coverage: [tool: Snakepit.Test.Coverage],
      # What tests run and is no test; newer versions of mix would ask about it.
      test_ignore_filters: [&String.starts_with?(&1, @no_tests)],
      description: "Runs external OS processes and never leaves one behind",
      package: package(),
      docs: docs()
    ]
  end

  def application do
    [
      mod: {Snakepit.Application, []},
      extra_applications: [:logger, :crypto] ++ used_here(Mix.env())
    ]
  end

  # Snakepit.WebServer uses it. Not for everybody: a dependency is compiled for :prod, and applications that have
  # such a server list it themselves, because to load and start it takes 10 ms.
  defp used_here(:prod), do: []
  defp used_here(:dev), do: [:inets]
  # And a server whose certificate is checked.
  defp used_here(:test), do: [:inets, :ssl]

  defp elixirc_paths(:test), do: ["lib", "test/support", "bench/support"]
  defp elixirc_paths(_env), do: ["lib"]

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      files:
        ~w(lib native native-checksums priv/python priv/proto priv/prometheus priv/dashboard priv/grafana priv/man guides examples .cargo/config.toml Cargo.toml Cargo.lock mix.exs README.md usage-rules.md CHANGELOG.md LICENSE)
    ]
  end

  # For `mix docs` where ExDoc is installed, as an archive or an escript. It is no dependency.
  defp docs do
    [
      main: "readme",
      source_ref: "v#{@version}",
      extras: [
        "README.md",
        "guides/getting-started.md",
        "guides/python.md",
        "guides/operation.md",
        "guides/monitoring.md",
        "guides/dashboard.md",
        "guides/recipes.md",
        "guides/grpc.md",
        "guides/migrating.md",
        "guides/cluster.md",
        "guides/switching.md",
        "guides/comparison.md",
        "guides/guarantees.md",
        "guides/internals.md",
        "guides/evidence.md",
        "usage-rules.md",
        {"priv/python/README.md", filename: "snakepit_bridge", title: "snakepit_bridge"},
        "CHANGELOG.md"
      ],
      assets: %{"guides" => "."},
      # The guides name private modules, which have no page, and link to directories.
      skip_code_autolink_to: [
        "Snakepit.AlignedTimer",
        "Snakepit.Launch",
        "Snakepit.Ledger.RunDirectory",
        "Snakepit.Ledger.Salvage",
        "Snakepit.OneShot.Feeder",
        "Snakepit.Options",
        "Snakepit.Output.Lines",
        "Snakepit.PipeSet",
        "Snakepit.SelfTest",
        "Snakepit.SelfTest.facts/0",
        "Snakepit.Stdio",
        "Snakepit.Stdio.t()"
      ],
      skip_undefined_reference_warnings_on: [
        "README.md",
        "guides/getting-started.md",
        "guides/recipes.md"
      ],
      groups_for_extras: [Guides: ~r"^guides/"],
      groups_for_modules: [
        "Running programs": [
          Snakepit,
          Snakepit.Worker,
          Snakepit.Pool,
          Snakepit.Python,
          Snakepit.Python.Error,
          Snakepit.Python.Session,
          Snakepit.Python.Bytes,
          Snakepit.GRPCWorker,
          Snakepit.GRPCWorker.Client,
          Snakepit.GRPCWorker.Client.HTTP2,
          Snakepit.GRPCWorker.Client.Stub,
          Snakepit.Adapter,
          Snakepit.HeartbeatMonitor,
          Snakepit.HeartbeatMonitor.Health,
          Snakepit.Worker.Notify.Status,
          Snakepit.Command,
          Snakepit.Result,
          Snakepit.Usage,
          Snakepit.Error
        ],
        "Setting up and testing": [
          Snakepit.Config,
          Snakepit.Test,
          Snakepit.ServiceManager,
          Snakepit.Telemetry,
          Snakepit.ProcessTelemetry
        ],
        Monitoring: [
          Snakepit.Metrics,
          Snakepit.Metrics.Server,
          Snakepit.Dashboard,
          Snakepit.PromEx,
          Snakepit.LiveDashboard
        ],
        "Looking and cleaning up": [Snakepit.CommandLine, Snakepit.Status, Snakepit.Doctor],
        Cluster: [
          Snakepit.Cluster,
          Snakepit.Cluster.Singleton,
          Snakepit.Cluster.OncePerPartition,
          Snakepit.Cluster.Lease,
          Snakepit.Cluster.Lease.Majority
        ],
        Runs: [
          Snakepit.RunID,
          Snakepit.RunState,
          Snakepit.Auditor,
          Snakepit.Pool.ApplicationCleanup,
          Snakepit.Pool.PIDLedger,
          Snakepit.Pool.ProcessRegistry
        ],
        "OS processes": [Snakepit.Guardian, Snakepit.OSProcess, Snakepit.ProcessKiller]
      ]
    ]
  end
end
