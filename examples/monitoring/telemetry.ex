defmodule MyApp.Telemetry do
  use Supervisor

  def start_link(opts), do: Supervisor.start_link(__MODULE__, opts, name: __MODULE__)

  @impl true
  def init(_opts) do
    children = [
      {:telemetry_poller, measurements: [{Snakepit.Metrics, :poll, []}], period: 10_000},
      {Telemetry.Metrics.ConsoleReporter, metrics: metrics()}
    ]

    Supervisor.init(children, strategy: :one_for_one)
  end

  def metrics, do: Snakepit.Metrics.definitions()
end
