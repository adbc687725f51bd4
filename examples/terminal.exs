# A program that wants a person in front of it, and gets one: a Python interpreter at a terminal, whose prompts are
# answered as they come. With your own terminal it is `Snakepit.Terminal.attach(worker)`.
# Run it with: mix run examples/terminal.exs

defmodule Dialogue do
  # Output comes as it is written, and not in lines: a prompt is none. So it is collected until it contains what is
  # waited for.
  def expect(pattern, heard \\ "") do
    if heard =~ pattern do
      heard
    else
      receive do
        {Snakepit.Worker, "python", {:output, data}} -> expect(pattern, heard <> data)
      after
        20_000 -> raise "Python has only said: #{inspect(heard)}"
      end
    end
  end
end

{:ok, worker} =
  Snakepit.Worker.start_link(
    id: "python",
    cmd: ["python3", "-i", "-q"],
    env: [{"PYTHON_BASIC_REPL", "1"}],
    stdio: {:pty, rows: 24, cols: 80},
    output: {:send, self()}
  )

Dialogue.expect(">>> ")
:ok = Snakepit.Worker.write(worker, "6 * 7\n")
[_all, number] = Regex.run(~r/\n(\d+)\r\n>>> /, Dialogue.expect(~r/\n\d+\r\n>>> /))
IO.puts("it can count: #{number}")

# Ctrl-C, for what takes too long.
:ok = Snakepit.Worker.write(worker, "print('be' + 'gun'); [None for _ in iter(int, 1)]\n")
Dialogue.expect("begun")
:ok = Snakepit.Worker.interrupt(worker)
IO.puts("interrupted: #{Dialogue.expect(~r/KeyboardInterrupt(.*)>>> /s) =~ "KeyboardInterrupt"}")

# A window of another size. The program asks its terminal for it.
:ok = Snakepit.Worker.resize(worker, 50, 132)
:ok = Snakepit.Worker.write(worker, "import os; print(*reversed(os.get_terminal_size()))\n")
[size] = Regex.run(~r/^\d+ \d+/m, Dialogue.expect(~r/\d+ \d+\r\n>>> /))
IO.puts("rows and columns: #{size}")

:ok = Snakepit.Worker.stop(worker)
