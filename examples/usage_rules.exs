# What usage-rules.md shows, run.
# Run it with: mix run examples/usage_rules.exs

program = ["sh", "-c", "while read line; do echo \"got $line\"; done"]

{output, 0} = Snakepit.cmd("sort", ["-r"], input: "1\n2\n", timeout: 5_000)
"2\n1\n" = output

{:ok, %Snakepit.Result{status: 3}} = Snakepit.run("sh", ["-c", "exit 3"], timeout: 5_000)
{:error, %Snakepit.Error{reason: :timeout}} = Snakepit.run("sleep", ["60"], timeout: 100)

children = [
  {Snakepit.Worker, name: MyApp.Echo, cmd: program, stdio: :pipe, packet: :line},
  {Snakepit.Pool, name: MyApp.Pool, size: 2, worker: [cmd: program, stdio: :pipe, packet: :line]}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :rest_for_one)

{:ok, "got it\n"} = Snakepit.Worker.request(MyApp.Echo, "it\n", 5_000)

{:ok, "got it\n"} =
  Snakepit.Pool.with_worker(MyApp.Pool, fn worker ->
    Snakepit.Worker.request(worker, "it\n", 5_000)
  end)

{:error, %Snakepit.Error{} = error} = Snakepit.run("no-such-program", [])
message = Exception.message(error)
IO.puts("message: #{message}")

:ok = Supervisor.stop(supervisor)
IO.puts("left behind: #{length(Snakepit.workers())}")
