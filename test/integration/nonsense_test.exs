defmodule Snakepit.NonsenseTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  test "whatever anybody passes to a function brings nothing down, also not the next start" do
    bystanders = Family.bystanders()
    beam = Beam.start()
    assert {calls, nil} = Beam.run(beam, "Snakepit.Test.Nonsense.run()")
    assert calls > 5_000

    Beam.kill_with_guardian(beam)
    next = Beam.start(data_dir: beam.data_dir)
    assert Beam.run(next, "Snakepit.RunState.current()") == :running
    Beam.kill(next)
    Beam.await_end(next)
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end
end
