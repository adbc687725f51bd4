defmodule Snakepit.StoppedGuardianTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  defp guardian(beam), do: Beam.run(beam, "Snakepit.Guardian.os_pid()")

  defp stop(guardian) do
    {_output, 0} = System.cmd("kill", ["-STOP", "#{guardian}"])
    eventually(fn -> ProcScan.stat(guardian).state == "T" end)
  end

  defp timed_start(beam) do
    Beam.run(beam, """
    {microseconds, answer} = :timer.tc(fn -> Snakepit.cmd("echo", ["here"]) end)
    {div(microseconds, 1000), answer}
    """)
  end

  test "it is continued, again and again, and what ran under it runs on" do
    beam = Beam.start()
    guardian = guardian(beam)
    token = Family.token()
    script = Family.script(token)

    Beam.run(
      beam,
      "{:ok, _} = Snakepit.Test.Workers.start(\"w\", [\"sh\", \"-c\", #{inspect(script)}]); :ok"
    )

    Family.await(token)

    for _ <- 1..3 do
      stop(guardian)
      assert {milliseconds, {"here\n", 0}} = timed_start(beam)
      assert milliseconds < 20_000
    end

    # Nor does anyone have to ask for something.
    stop(guardian)
    eventually(fn -> ProcScan.stat(guardian).state != "T" end)
    assert guardian(beam) == guardian
    assert length(Family.members(token)) == 4
  end

  test "with nothing to guard it is continued when it is needed" do
    beam = Beam.start()
    guardian = guardian(beam)
    stop(guardian)
    assert {milliseconds, {"here\n", 0}} = timed_start(beam)
    assert milliseconds < 20_000
    assert guardian(beam) == guardian
  end

  test "one to which more was written than a pipe holds" do
    beam = Beam.start()
    guardian = guardian(beam)
    stop(guardian)

    # The server waits in its write, and cannot ask anybody anything.
    assert Beam.run(beam, """
           argument = String.duplicate("x", 100_000)
           tasks = for _ <- 1..20, do: Task.async(fn -> Snakepit.cmd("echo", [argument]) end)
           tasks |> Task.await_many(30_000) |> Enum.all?(&(elem(&1, 1) == 0))
           """)

    assert guardian(beam) == guardian
  end
end
