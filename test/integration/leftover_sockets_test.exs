defmodule Snakepit.LeftoverSocketsTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  # The guardian's socket is in a directory of its own below the temporary one where its path would be too
  # long.
  @long String.duplicate("long/", 30)

  defp start(data_dir, temporary) do
    Beam.start([data_dir: data_dir, graceful_shutdown_timeout_ms: 300],
      env: [{"TMPDIR", temporary}]
    )
  end

  # Only what is the guardian's: others make files there too, and remove them.
  defp sockets(temporary), do: for("snakepit-" <> _ = name <- File.ls!(temporary), do: name)

  defp replace_guardian(beam) do
    guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
    {_output, 0} = System.cmd("kill", ["-KILL", "#{guardian}"])
    eventually(fn -> not ProcScan.running?(guardian) end)

    eventually(fn ->
      Beam.run(beam, "try do Snakepit.Guardian.os_pid() catch _, _ -> nil end") not in [
        nil,
        guardian
      ]
    end)

    assert {"piped\n", 0} = Beam.run(beam, ~s|Snakepit.cmd("cat", [], input: "piped\\n")|)
  end

  for {kind, below, count} <- [{"long", @long, 1}, {"short", "short", 0}] do
    test "a guardian that is killed leaves no socket of a #{kind} path in the temporary directory" do
      [base, temporary] = for _ <- 1..2, do: Beam.temporary_directory()
      data_dir = Path.join(base, unquote(below))
      one = start(data_dir, temporary)
      assert length(sockets(temporary)) == unquote(count)
      replace_guardian(one)
      assert length(sockets(temporary)) == unquote(count)
      Beam.kill_with_guardian(one)
      left = sockets(temporary)
      assert length(left) == unquote(count)

      two = start(data_dir, temporary)
      assert length(sockets(temporary)) == unquote(count)
      assert Enum.all?(left, &(&1 not in sockets(temporary)))
      :ok = Beam.run(two, "Application.stop(:snakepit)")
      assert sockets(temporary) == []
    end
  end
end
