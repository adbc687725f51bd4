# Any program can be a worker: this one is a shell, which says when it is ready, and whose output goes
# wherever it is wanted. What it starts ends with it.
# Run it with: mix run examples/shell_program.exs

script = """
sleep 600 &
echo "ready, and so is my child $!"
for number in 1 2 3; do echo "tick $number"; done
sleep 600
"""

{:ok, worker} =
  Snakepit.Worker.start_link(
    id: "clock",
    cmd: ["sh", "-c", script],
    output: &IO.write/1,
    ready: {:output, "tick 3"}
  )

:ok = Snakepit.Worker.stop(worker)

# Or without a worker, to its end.
{output, 0} = Snakepit.cmd("sort", ["-r"], input: "1\n3\n2\n", timeout: 5_000)
IO.write(output)

["y\n", "y\n"] = Snakepit.stream!(["yes"], packet: :line) |> Enum.take(2)
IO.puts("left behind: #{length(Snakepit.workers())}")
