defmodule Snakepit.Pool.PIDLedgerTest do
  use Snakepit.Test.OwnDirectory, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Error, Native, RunState}
  alias Snakepit.Ledger.History
  alias Snakepit.Pool.PIDLedger
  alias Snakepit.Test.{OpenFiles, Program, Workers}

  doctest PIDLedger

  test "it keeps what it is told until it is told otherwise", %{run: run} do
    os_pid = Program.sleeper()
    {:ok, {_, identity}} = Native.process_lookup(os_pid)
    :ok = PIDLedger.register_process("r", status: :reserved)
    :ok = PIDLedger.register_process("w", os_pid: os_pid, identity: identity)
    assert PIDLedger.get_all_pids() == [os_pid]
    assert length(PIDLedger.all()) == 2
    assert PIDLedger.path() == Path.join(run.directory, "ledger.dets")

    # Only the dead are forgotten.
    assert {:error, %Error{reason: :survivors, os_pids: [^os_pid]}} = PIDLedger.clear()
    assert [%{worker_id: "w", status: :active}] = PIDLedger.all()
    :ok = Snakepit.ProcessKiller.kill_with_escalation(os_pid)
    assert PIDLedger.clear() == :ok
    assert PIDLedger.all() == []
  end

  test "a record that makes no sense is refused, and nothing is written" do
    for field <- [
          status: :dead,
          status: nil,
          command: "sleep",
          command: [:sleep],
          spawned_at: nil,
          spawned_at: "now",
          spawned_at: 0x8000000000000000,
          os_pid: 0,
          os_pid: 0x8000000000000000,
          pgid: "1",
          identity: 1,
          elixir_pid: self(),
          elixir_pid: <<255>>,
          elixir_pid: "x",
          color: "red",
          color: nil
        ] do
      assert_raise ArgumentError, ~r/a worker's record: /, fn ->
        PIDLedger.register_process("w", [field])
      end
    end

    assert_raise ArgumentError, ~r/:worker_id/, fn -> PIDLedger.register_process(<<255>>) end
    assert PIDLedger.all() == []
    :ok = PIDLedger.register_process("w", os_pid: nil, pgid: 5, spawned_at: 1, command: ["a"])
    assert [%{os_pid: nil, pgid: 5, spawned_at: 1, command: ["a"]}] = PIDLedger.all()
  end

  test "a ledger that is gone takes nothing and says so", %{run: run} do
    :ok = PIDLedger.register_process("r", status: :reserved)
    # In the table by then, which is still open.
    assert [%{worker_id: "r"}] = PIDLedger.all()
    # In the journal alone, and stored by no checkpoint.
    :ok = :sys.suspend(PIDLedger)
    :ok = PIDLedger.register_process("s")
    lose_directory(run)
    assert {:error, %Error{reason: :estale} = error} = PIDLedger.register_process("x")
    assert Exception.message(error) =~ "the run's directory was deleted"
    assert {:error, %Error{reason: :estale}} = PIDLedger.unregister_process("r")
    assert {:error, %Error{reason: :estale}} = PIDLedger.register_guardian("x")

    log =
      capture_log(fn ->
        :ok = :sys.resume(PIDLedger)

        for _ <- 1..2 do
          send(PIDLedger, :checkpoint)
          PIDLedger.all()
        end

        assert {:error, %Error{reason: :estale}} = PIDLedger.clear()
      end)

    assert length(String.split(log, "cannot be written")) == 2
  end

  test "an obstacle is reported once, and its end too", %{run: run} do
    obstacle = Path.join(run.directory, "journal.old")
    _ = PIDLedger.all()

    # Order: heard from before the obstacle is there, since the ledger makes a checkpoint each second by itself.
    log =
      capture_log(fn ->
        File.mkdir!(obstacle)
        :ok = PIDLedger.register_process("w", status: :reserved)
        # What no checkpoint can store is read from where it is.
        for _ <- 1..3, do: assert([%{worker_id: "w"}] = PIDLedger.all())
      end)

    assert length(String.split(log, "cannot be written")) == 2

    log =
      capture_log(fn ->
        File.rmdir!(obstacle)
        PIDLedger.all()
      end)

    assert log =~ "can be written again"
    assert [%{worker_id: "w"}] = PIDLedger.all()
  end

  test "a table that was damaged under it is set aside", %{run: run} do
    ledger = Process.whereis(PIDLedger)

    without_supervisor(fn ->
      Process.exit(ledger, :kill)
      # DETS writes the end of it when it is no table any more by name.
      eventually(fn -> OpenFiles.matching(PIDLedger.path()) == [] end)
      File.write!(PIDLedger.path(), String.duplicate("garbage", 100))
    end)

    await_tree(PIDLedger, ledger)
    assert Enum.any?(File.ls!(run.directory), &(&1 =~ ~r/^ledger.dets.refused-/))
    assert RunState.current() == :running
    {:ok, child} = Workers.start("w", ["sleep", "600"])
    assert [%{worker_id: "w"}] = PIDLedger.all()
    assert Workers.stop(child) == :normal
  end

  test "one that cannot be opened again is a reason to end" do
    supervisor = Process.monitor(Snakepit.Supervisor)
    ledger = Process.whereis(PIDLedger)

    without_supervisor(fn ->
      Process.exit(ledger, :kill)
      eventually(fn -> OpenFiles.matching(PIDLedger.path()) == [] end)
      File.rm!(PIDLedger.path())
      File.mkdir!(PIDLedger.path())
    end)

    assert_receive {:DOWN, ^supervisor, :process, _, _}, 20_000

    eventually(fn ->
      Enum.all?(Application.started_applications(), &(elem(&1, 0) != :snakepit))
    end)
  end

  test "a tree that gives up is no orderly end, and closes its record", %{
    run: run,
    data_dir: data_dir
  } do
    {:ok, _child} = Workers.start("w", ["sleep", "600"])
    send(PIDLedger, :nonsense)
    supervisor = Process.whereis(Snakepit.Supervisor)
    monitor = Process.monitor(supervisor)
    # More often than it forgives.
    eventually(fn -> kill_auditor() == nil end, 20_000)
    assert_receive {:DOWN, ^monitor, :process, ^supervisor, _}, 10_000

    eventually(fn ->
      Enum.all?(Application.started_applications(), &(elem(&1, 0) != :snakepit))
    end)

    assert [%{run_id: id, clean_shutdown: false, terminated_by: :cleanup}] =
             History.list(data_dir)

    assert id == run.id
  end

  defp kill_auditor do
    with auditor when auditor != nil <- Process.whereis(Snakepit.Auditor) do
      Process.exit(auditor, :kill)
      # Another, or none any more.
      eventually(fn -> Process.whereis(Snakepit.Auditor) != auditor end)
      Process.whereis(Snakepit.Supervisor)
    end
  end

  test "after a crash it goes on with the run" do
    :ok = PIDLedger.register_process("r", status: :reserved)
    id = Snakepit.run_id()
    ledger = Process.whereis(PIDLedger)
    # Not by a signal that nobody hears: it closes its table on the way out.
    catch_exit(GenServer.call(PIDLedger, :nonsense))
    await_tree(PIDLedger, ledger)
    assert Snakepit.run_id() == id
    assert RunState.current() == :running
  end
end
