defmodule Snakepit.LogFloodTest do
  # What is logged is captured, from whichever process.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  @moduletag :long

  defp lines(log, pattern), do: log |> String.split("\n") |> Enum.filter(&(&1 =~ pattern))

  test "half a million lines are counted, some are logged, and the logger lives" do
    log =
      capture_log(fn ->
        {:ok, worker} =
          Worker.start_link(
            id: "flood",
            cmd: sh("yes line | head -n 500000"),
            output: {:logger, max_per_second: 100}
          )

        assert await_down(worker, 60_000) == :normal
      end)

    logged = length(lines(log, "flood: line"))

    left_out =
      for line <- lines(log, "left out"),
          do: ~r/flood: (\d+) lines/ |> Regex.run(line) |> Enum.at(1) |> String.to_integer()

    assert logged > 0
    assert logged + Enum.sum(left_out) == 500_000
    # A word about what was left out per second, and not per line.
    assert length(left_out) <= div(logged, 100) + 2
  end

  test "a thousand lines in a second are logged unless something else is said" do
    log =
      capture_log(fn ->
        {:ok, worker} = Worker.start_link(id: "default", cmd: sh("seq 1500"), output: :logger)
        assert await_down(worker) == :normal
      end)

    # A slow machine takes more than a second for it.
    assert length(lines(log, ~r/default: \d+$/)) >= 1_000
  end

  test "a terminal's output is logged in lines, without the returns" do
    log =
      capture_log(fn ->
        script = "printf 'no '; sleep 0.1; echo line; printf '\\377\\n'; printf end"
        options = [id: "terminal", cmd: sh(script), stdio: :pty, output: {:logger, prefix: "> "}]
        {:ok, worker} = Worker.start_link(options)
        assert await_down(worker) == :normal
      end)

    assert log =~ "> no line\n"
    assert log =~ "> \\xFF\n"
    assert log =~ "> end\n"
  end

  test "options of the log that are none are refused before anything starts" do
    assert_raise ArgumentError, ~r/^:output: unknown option :colour/, fn ->
      Worker.start_link(cmd: ["true"], output: {:logger, colour: :red})
    end
  end
end
