defmodule Snakepit.NotedGuardianTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, Program, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]
  @old_kernel [Path.expand("../../script/old-kernel", __DIR__)]

  for {kernel, wrapper} <- [{"this kernel", ["env"]}, {"an older kernel", @old_kernel}] do
    test "a guardian that was stopped is ended by the next start, on #{kernel}" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      first = Beam.start([data_dir: data_dir] ++ @config, wrapper: unquote(wrapper))
      family = Family.start(first)
      guardian = Beam.run(first, "Snakepit.Guardian.os_pid()")
      {_output, 0} = System.cmd("kill", ["-STOP", "#{guardian}"])
      eventually(fn -> ProcScan.stat(guardian).state == "T" end)
      Beam.kill(first)
      Beam.await_end(first)
      assert ProcScan.running?(guardian)

      second = Beam.start([data_dir: data_dir] ++ @config, wrapper: unquote(wrapper))
      refute ProcScan.running?(guardian)
      assert Family.members(family) == []
      assert [%{terminated_by: :cleanup}] = Beam.run(second, "Snakepit.RunState.history()")
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  # Whoever may write to the directory can name anybody, and identities are no secret.
  test "a process that a ledger calls its guardian and that is none is left alone" do
    stranger = Program.sleeper()
    data_dir = Beam.temporary_directory()
    first = Beam.start([data_dir: data_dir] ++ @config)
    guardian = Beam.run(first, "Snakepit.Guardian.os_pid()")

    # The stranger, and the guardian of another run, for BEAMs that are dead.
    beam = Program.sleeper()

    Beam.run(first, """
    beam = Snakepit.Test.Grave.identity(#{beam})
    for os_pid <- [#{stranger}, #{guardian}] do
      directory = Snakepit.Test.Grave.dig(Snakepit.Test.Grave.run_id(), beam, [], [])
      Snakepit.Test.Grave.append(directory, [{:guardian, Snakepit.Test.Grave.identity(os_pid)}])
    end
    """)

    {_output, 0} = System.cmd("kill", ["-KILL", "#{beam}"])
    eventually(fn -> not ProcScan.running?(beam) end)
    second = Beam.start([data_dir: data_dir] ++ @config)
    assert ProcScan.running?(stranger)
    assert ProcScan.running?(guardian)
    assert Beam.run(first, "Snakepit.Guardian.os_pid()") == guardian
    assert length(Beam.run(second, "Snakepit.RunState.history()")) == 2
  end
end
