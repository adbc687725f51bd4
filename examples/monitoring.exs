# What Prometheus reads of an application: counters, and what its workers use.
# Run it with: mix run examples/monitoring.exs

children = [
  Snakepit.Metrics,
  {Snakepit.Metrics.Server, port: 0, name: MyApp.Metrics},
  {Snakepit.Pool, name: MyApp.Nap, size: 2, worker: [cmd: ["sleep", "600"]]}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)
:ok = Snakepit.Pool.await_ready(MyApp.Nap)

# As Prometheus does it, every few seconds.
{:ok, _applications} = Application.ensure_all_started(:inets)
url = ~c"http://127.0.0.1:#{Snakepit.Metrics.Server.port(MyApp.Metrics)}/metrics"
options = [body_format: :binary]
{:ok, {{_version, 200, _phrase}, _headers, text}} = :httpc.request(:get, {url, []}, [], options)

for line <- String.split(text, "\n"),
    line =~ ~r/^snakepit_(workers|process_starts_total)/,
    do: IO.puts(line)

Supervisor.stop(supervisor)
