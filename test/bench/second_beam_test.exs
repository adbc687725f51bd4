defmodule Snakepit.Bench.SecondBeamTest do
  use ExUnit.Case, async: true

  @moduletag :long

  alias Snakepit.Bench.SecondBeam
  alias Snakepit.Test.Eventually

  test "one that was killed is not asked to stop, whether its port has closed yet or not" do
    assert :killed == SecondBeam.with_beam(&kill/1)

    assert SecondBeam.with_beam(fn beam ->
             kill(beam)
             Eventually.eventually?(fn -> Port.info(beam.port) == nil end, 5_000)
           end)
  end

  defp kill(beam) do
    {"", 0} = System.cmd("kill", ["-KILL", "#{beam.os_pid}"])
    :killed
  end
end
