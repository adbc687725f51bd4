# What guides/operation.md shows of readiness, ways to stop, what a worker uses, and commands. Each line matches what it returns.
# Run it with: mix run examples/operation.exs

script = Path.join(__DIR__, "operation.py")

{:ok, worker} =
  Snakepit.Worker.start_link(
    cmd: ["python3", script],
    ready: :notify,
    watchdog: 60_000,
    abort_signal: :sigabrt,
    kill_mode: :mixed
  )

%{state: :ready, text: "listening"} = Snakepit.Worker.info!(worker).notify
IO.puts("ready: #{Snakepit.Worker.info!(worker).notify.text}")

{:ok, usage} = Snakepit.Worker.usage(worker)
true = usage.processes >= 1 and usage.rss_bytes > 0 and usage.user_us >= 0
{:ok, %{pss_bytes: pss}} = Snakepit.Worker.usage(worker, pss: true)
true = pss > 0

{:ok, [%{name: name, threads: 1} | _children]} = Snakepit.Worker.processes(worker)
IO.puts("it runs: #{name =~ "python"}")
:ok = Snakepit.Worker.stop(worker)

flag = Path.join(System.tmp_dir!(), "stop-#{System.pid()}")

{:ok, worker} =
  Snakepit.Worker.start_link(
    cmd: ["sh", "-c", "until [ -e #{flag} ]; do sleep 0.1; done"],
    stop_command: ["touch", flag],
    stop_timeout: 10_000
  )

:ok = Snakepit.Worker.stop(worker)
true = File.exists?(flag)
File.rm!(flag)
IO.puts(Snakepit.Status.table())
{history, 0} = Snakepit.CommandLine.run(["history"])
broken = Enum.filter(Snakepit.Doctor.report(), &(&1.level == :broken))
IO.puts("broken: #{length(broken)}, history: #{history =~ "no runs have ended"}")

IO.puts("left behind: #{length(Snakepit.workers())}")
