defmodule Snakepit.Pool.ApplicationCleanupTest do
  use Snakepit.Test.OwnDirectory, async: false

  import ExUnit.CaptureLog

  alias Snakepit.Guardian
  alias Snakepit.Ledger.History
  alias Snakepit.Guardian.Shutdown
  alias Snakepit.Cleanup.PreviousGuardian
  alias Snakepit.Pool.{ApplicationCleanup, ProcessRegistry}
  alias Snakepit.Test.{BadGuardian, Program, ProcScan, Workers}

  @stubborn ["sh", "-c", "trap '' TERM; echo ready; exec sleep 600"]

  defp start_stubborn do
    {:ok, child} = Workers.start("w", @stubborn)
    eventually(fn -> Guardian.output_tail(child) == {:ok, "ready\n"} end)
    child
  end

  @tag config: [cleanup_on_stop_timeout_ms: 50]
  test "the stop ends what does not end when asked, and says so", %{data_dir: data_dir} do
    child = start_stubborn()
    assert capture_log(fn -> Application.stop(:snakepit) end) =~ "had to kill 1 processes"
    refute ProcScan.running?(child.os_pid)

    assert [%{terminated_by: :clean_shutdown, found: 1, killed: 1, gone: 1}] =
             History.list(data_dir)
  end

  test "a stop with nothing to do says nothing", %{data_dir: data_dir} do
    {:ok, child} = Workers.start("w", ["sleep", "600"])
    assert Workers.stop(child) == :normal
    log = capture_log([level: :warning], fn -> Application.stop(:snakepit) end)
    assert log == ""
    assert [%{terminated_by: :clean_shutdown, found: 0, killed: 0}] = History.list(data_dir)
  end

  @tag config: [cleanup_on_stop: false]
  test "switched off, it leaves the end to the guardian", %{data_dir: data_dir} do
    {:ok, child} = Workers.start("w", ["sleep", "600"])
    :ok = Application.stop(:snakepit)
    refute ProcScan.running?(child.os_pid)
    assert [%{clean_shutdown: false}] = History.list(data_dir)
  end

  test "a crash beside it is no stop" do
    {:ok, child} = Workers.start("w", ["sleep", "600"])
    crash(ProcessRegistry)
    assert ProcScan.running?(child.os_pid)
    assert Workers.stop(child) == :normal
  end

  test "without a guardian what is left is found by its marks" do
    stray = start_stray()
    guardian = Guardian.os_pid()

    without_supervisor(fn ->
      {:ok, _child} = Workers.start("w", ["sleep", "600"])
      server = Process.whereis(Guardian)
      System.cmd("kill", ["-KILL", "#{guardian}"])
      eventually(fn -> not Process.alive?(server) end)
      # Swept by then; one more has come.
      late = start_stray()

      assert %{stopped: 1, killed: 0, survivors: []} =
               ApplicationCleanup.run(20_000, 20_000, last: true)

      refute ProcScan.running?(late)
      refute ProcScan.running?(stray)
    end)
  end

  test "the process table is searched if a guardian was lost, and only then" do
    run = Snakepit.Run.current!()
    stray = start_stray()
    refute PreviousGuardian.any?(run)
    assert %{stopped: 0, killed: 0, survivors: []} = ApplicationCleanup.run(20_000, 20_000)
    assert ProcScan.running?(stray)

    [guardian, server] = [Guardian.os_pid(), Process.whereis(Guardian)]

    capture_log(fn ->
      System.cmd("kill", ["-KILL", "#{guardian}"])
      await_tree(Guardian, server)
    end)

    # Swept with what the guardian has left; one more has come.
    refute ProcScan.running?(stray)
    late = start_stray()
    assert PreviousGuardian.any?(run)
    assert %{stopped: 1, survivors: []} = ApplicationCleanup.run(20_000, 20_000)
    refute ProcScan.running?(late)
  end

  test "a guardian's last word is believed; without it the process table is searched" do
    run = Snakepit.Run.current!()
    stray = start_stray()
    path = Path.join(run.directory, "obituary")

    # MessagePack: the run, its BEAM, when and how, and in the end the processes and who has survived.
    word = <<0x97, 0xA7, run.id::binary, 1, 2, 0xA4, "port", 5, 0x90>>

    File.write!(path, word <> <<0x90>>)
    assert capture_log(fn -> Shutdown.hear_last_word(run) end) == ""
    File.write!(path, word <> <<0x91, 72>>)

    assert capture_log(fn -> Shutdown.hear_last_word(run) end) =~
             "survived the stop of the application: [72]"

    assert ProcScan.running?(stray)

    for missing <- [fn -> File.write!(path, "") end, fn -> File.rm!(path) end] do
      missing.()
      stray = start_stray()
      Shutdown.hear_last_word(run)
      refute ProcScan.running?(stray)
    end

    refute ProcScan.running?(stray)
  end

  test "what survives the stop is named, and the end is no clean one", %{data_dir: data_dir} do
    survivors = {"AllGone", [1, 2, [71, 72]]}
    BadGuardian.replace([[:welcome], [survivors], [survivors], [{"AllGone", [0, 0, []]}]])
    assert %{survivors: [71, 72]} = ApplicationCleanup.run(0, 0)

    log = capture_log(fn -> Application.stop(:snakepit) end)
    assert log =~ "cannot end these processes: [71, 72]"

    assert [%{terminated_by: :cleanup, clean_shutdown: false, found: 2, gone: 0}] =
             History.list(data_dir)
  end

  test "a registry that is being started again is waited for" do
    :ok = :sys.suspend(Snakepit.Supervisor)
    registry = Process.whereis(Snakepit.Pool.ProcessRegistry)
    monitor = Process.monitor(registry)
    Process.exit(registry, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^registry, :killed}, 5_000
    cleanup = Task.async(fn -> Snakepit.cleanup() end)
    eventually(fn -> Process.info(cleanup.pid, :status) == {:status, :waiting} end)
    :ok = :sys.resume(Snakepit.Supervisor)
    assert {:ok, %{killed: 0}} = Task.await(cleanup, 30_000)
  end

  test "whoever could not be asked to end may be there" do
    assert ApplicationCleanup.stopped([%{os_pid: 71}], {:error, {:eacces, nil}}) ==
             %{stopped: 0, killed: 0, survivors: [71]}
  end

  test "a process table that cannot be read is told" do
    log =
      capture_log(fn ->
        assert ApplicationCleanup.swept({:error, {:eacces, nil}}) ==
                 %{stopped: 0, killed: 0, survivors: []}
      end)

    assert log =~ "cannot read the process table: eacces"
  end

  defp start_stray do
    run = Snakepit.Run.current!()
    {:ok, marks} = Snakepit.Native.marker_environment(run.id, "x", run.instance)
    env = for {name, value} <- marks, do: {String.to_charlist(name), String.to_charlist(value)}
    Program.sleeper(env: env)
  end
end
