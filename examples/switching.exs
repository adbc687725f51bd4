# What is done elsewhere with System.cmd, ports, MuonTrap, erlexec, Exile and net_runner, done with Snakepit: the
# snippets of guides/switching.md. Each matches what it returns.
# Run it with: mix run examples/switching.exs

{output, 0} = Snakepit.cmd("sort", ["-r"], input: "1\n2\n", timeout: 5_000)
IO.write(output)

{:ok, result} = Snakepit.run("sh", ["-c", "echo out; echo err >&2; exit 3"], stderr: :capture)
{3, "out\n", "err\n"} = {result.status, result.stdout, result.stderr}

lines = Stream.map(1..3, &"line #{&1}\n")
["tr", "a-z", "A-Z"] |> Snakepit.stream!(input: lines) |> Enum.each(&IO.write/1)

[{:stdout, "out\n"}, {:exit, {:status, 3}}] =
  ["sh", "-c", "echo out; exit 3"] |> Snakepit.stream(stderr: :capture) |> Enum.to_list()

daemon = [id: "daemon", cmd: ["sleep", "60"], output: :logger, stop_timeout: 1_000]
{:ok, supervisor} = Supervisor.start_link([{Snakepit.Worker, daemon}], strategy: :one_for_one)

[%{id: "daemon", state: :alive}] = Snakepit.workers()
Supervisor.stop(supervisor)

Process.flag(:trap_exit, true)

{:ok, worker} =
  Snakepit.Worker.start_link(
    id: "lines",
    cmd: ["sh", "-c", "seq 2; exit 3"],
    output: {:send, self()}
  )

"1\n" = receive(do: ({Snakepit.Worker, "lines", {:output, line}} -> line))
"2\n" = receive(do: ({Snakepit.Worker, "lines", {:output, line}} -> line))
{:exit_status, 3} = receive(do: ({:EXIT, ^worker, reason} -> reason))

{:ok, worker} = Snakepit.Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: 4)
{:ok, "any\0bytes"} = Snakepit.Worker.request(worker, "any\0bytes")
:ok = Snakepit.Worker.stop(worker)

{:ok, worker} = Snakepit.Worker.start_link(cmd: ["cat"], stdio: :pipe, output: :read)
:ok = Snakepit.Worker.write(worker, "one\ntwo\n")
{:ok, "one\n"} = Snakepit.Worker.read(worker, :line)
{:ok, "tw"} = Snakepit.Worker.read(worker, 2)
:ok = Snakepit.Worker.stop(worker)

shell = "read name; echo hello $name, your terminal has $(stty size); read more"

{:ok, worker} =
  Snakepit.Worker.start_link(
    id: "shell",
    cmd: ["sh", "-c", shell],
    stdio: {:pty, rows: 30, cols: 100, echo: false},
    output: {:send, self()}
  )

:ok = Snakepit.Worker.write(worker, "Robert\n")
said = receive(do: ({Snakepit.Worker, "shell", {:output, text}} -> text))
IO.write(said)
:ok = Snakepit.Worker.interrupt(worker)
{:exit_signal, :sigint} = receive(do: ({:EXIT, ^worker, reason} when reason != :normal -> reason))
IO.puts("left behind: #{length(Snakepit.workers())}")
