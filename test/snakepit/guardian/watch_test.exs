defmodule Snakepit.Guardian.WatchTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog
  import Snakepit.Test.Eventually

  alias Snakepit.Guardian.Watch
  alias Snakepit.{Native, OSProcess}
  alias Snakepit.Test.{Program, ProcScan}

  # What is watched is a process that is stopped, and says nothing at the other end of a port.
  setup do
    os_pid = Program.sleeper()
    {_output, 0} = System.cmd("kill", ["-STOP", "#{os_pid}"])
    eventually(fn -> stopped?(os_pid) end)
    {:ok, process} = OSProcess.lookup(os_pid)
    port = Port.open({:spawn_executable, System.find_executable("cat")}, [:binary])
    on_exit(fn -> Native.guardian_protect(process.identity, false) end)
    %{os_pid: os_pid, watch: Watch.start(port, process, watch_ms: 20)}
  end

  defp stopped?(os_pid), do: ProcScan.stat(os_pid).state == "T"

  test "one that runs nothing and was asked for nothing is left as it is", context do
    Watch.heard(context.watch)
    refute eventually?(fn -> not stopped?(context.os_pid) end, 300)
  end

  test "one that was asked is continued, also if it was heard a moment before", context do
    log =
      capture_log(fn ->
        Watch.asked(context.watch)
        Watch.heard(context.watch)
        eventually(fn -> not stopped?(context.os_pid) end)
      end)

    assert log =~ "(OS pid #{context.os_pid}) was stopped"
  end

  test "so is one that guards something", context do
    capture_log(fn ->
      Watch.running(context.watch, 1)
      eventually(fn -> not stopped?(context.os_pid) end)
    end)
  end
end
