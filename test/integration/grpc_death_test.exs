defmodule Snakepit.GRPCDeathTest do
  # gRPC servers in a second BEAM, which is killed while they answer.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test
  alias Snakepit.Test.{Beam, ProcScan, Program}

  @moduletag :long
  @moduletag timeout: 180_000
  @moduletag skip: Test.GRPC.skip()

  # Both on the command line: what waits at the guardian's gate has the run id too.
  defp servers(run_id) do
    script = Path.expand("../fixtures/grpc_service.py", __DIR__)
    running = ProcScan.with_argument(run_id)
    for os_pid <- ProcScan.with_argument(script), os_pid in running, do: os_pid
  end

  test "kill -9 of the BEAM in the middle of calls leaves no server, and the next BEAM has the same socket" do
    directory = Beam.temporary_directory()
    bystander = Program.sleeper()

    beam = Beam.start()
    run_id = Beam.run(beam, "Snakepit.run_id()")
    :ok = Beam.call(beam, Test.GRPC, :start_several, [directory])
    assert length(servers(run_id)) == 4

    :ok = Beam.call(beam, Test.GRPC, :begin_calls, [directory])
    held = for n <- 1..3, do: Path.join(directory, "held-#{n}")
    eventually(fn -> Enum.all?(held, &File.exists?/1) end, 60_000)

    Beam.kill(beam)
    Beam.await_end(beam)
    eventually(fn -> servers(run_id) == [] end)
    assert ProcScan.running?(bystander)

    # Whether the server was there long enough to remove its file or not.
    socket = Path.join(directory, "one.sock")
    next = Beam.start()
    assert Beam.call(next, Test.GRPC, :start_on, [socket]) == {:ok, "unix:" <> socket}
    run_id = Beam.run(next, "Snakepit.run_id()")
    assert length(servers(run_id)) == 1
    Beam.kill(next)
    eventually(fn -> servers(run_id) == [] end)
  end

  test "an orderly stop of the BEAM leaves none either" do
    beam = Beam.start()
    run_id = Beam.run(beam, "Snakepit.run_id()")
    :ok = Beam.call(beam, Test.GRPC, :start_several, [Beam.temporary_directory()])
    Beam.kill(beam, "TERM")
    Beam.await_end(beam)
    eventually(fn -> servers(run_id) == [] end)
  end
end
