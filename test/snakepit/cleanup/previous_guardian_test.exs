defmodule Snakepit.Cleanup.PreviousGuardianTest do
  use Snakepit.Test.OwnDirectory, async: false

  alias Snakepit.{Guardian, Native, OSProcess, Run, RunID}
  alias Snakepit.Cleanup.PreviousGuardian
  alias Snakepit.Test.{Beam, Program, ProcScan}

  @moduletag config: [watchdog: [grace_period_ms: 100]]

  # A run of its own, whose guardian is no more than a process that stays.
  defp stuck do
    run = %{Run.current!() | id: RunID.generate(), directory: Beam.temporary_directory()}
    os_pid = Program.sleeper()
    {:ok, process} = OSProcess.lookup(os_pid)
    PreviousGuardian.note(run, process)
    {run, os_pid}
  end

  test "one whose server waited for it keeps nobody waiting", %{run: run} do
    {other, os_pid} = stuck()
    PreviousGuardian.forget(other)
    refute PreviousGuardian.await_end(other, 0)
    assert ProcScan.running?(os_pid)

    # Its server was told to stop, and this one would wait for ever.
    :ok = Application.stop(:snakepit)
    refute PreviousGuardian.await_end(run, 600_000)
  end

  test "one that does not end is killed, and its last word is not this run's" do
    {run, os_pid} = stuck()
    obituary = Path.join(run.directory, "obituary")
    File.write!(obituary, "")
    assert PreviousGuardian.await_end(run, 0)
    refute ProcScan.running?(os_pid)
    refute File.exists?(obituary)
    refute PreviousGuardian.await_end(run, 0)
  end

  test "the next one starts when it and all of its own are gone", %{run: run} do
    old = Guardian.os_pid()
    # As by a program that has given up its parents: only its marks tell.
    {:ok, marks} = Native.marker_environment(run.id, "x", run.instance)
    env = for {name, value} <- marks, do: {String.to_charlist(name), String.to_charlist(value)}
    stray = Program.sleeper(env: env)
    crash(Guardian)
    assert Guardian.os_pid() != old
    refute ProcScan.running?(old)
    refute ProcScan.running?(stray)
    refute File.exists?(Path.join(run.directory, "obituary"))
  end
end
