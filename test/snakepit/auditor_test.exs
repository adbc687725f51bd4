defmodule Snakepit.AuditorTest do
  use Snakepit.Test.OwnDirectory, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Auditor, Native, Run, Worker}
  alias Snakepit.Cleanup.Strays
  alias Snakepit.Test.{Program, ProcScan}

  doctest Auditor

  defp stray do
    run = Run.current!()
    {:ok, marks} = Native.marker_environment(run.id, "x", run.instance)
    env = for {name, value} <- marks, do: {String.to_charlist(name), String.to_charlist(value)}
    Program.sleeper(env: env)
  end

  test "what has this run's marks and is not below the guardian is ended" do
    stray = stray()
    bystander = Program.sleeper()
    log = capture_log(fn -> assert %{orphans: 1} = Auditor.audit() end)
    assert log =~ "kills processes of this run that are not below its guardian: #{stray}"
    refute ProcScan.running?(stray)
    assert ProcScan.running?(bystander)
    assert %{orphans: 0, stale_entries: 0} = Auditor.audit()
  end

  @tag config: [audit_interval_ms: 20]
  test "by itself, again and again" do
    for _ <- 1..2 do
      stray = stray()
      eventually(fn -> not ProcScan.running?(stray) end)
    end
  end

  test "a look for what earlier runs have left that cannot be taken is told, and tried by the next start" do
    run = Run.current!()
    away = run.data_dir <> ".away"
    :persistent_term.erase({Auditor, run.instance})
    File.rename!(run.data_dir, away)

    log =
      capture_log(fn ->
        send(Auditor, :strays)
        # Answered after that.
        Auditor.audit()
      end)

    File.rename!(away, run.data_dir)
    assert log =~ "cannot look for earlier runs' processes"
    assert %{orphans: 0} = Auditor.audit()
  end

  test "its crash ends no worker" do
    {:ok, worker} =
      DynamicSupervisor.start_child(
        Snakepit.WorkerSupervisor,
        {Worker, id: "bystander", cmd: ["sleep", "600"]}
      )

    os_pid = Worker.os_pid!(worker)
    crash(Auditor)
    assert Worker.os_pid!(worker) == os_pid
    assert ProcScan.running?(os_pid)
    assert DynamicSupervisor.terminate_child(Snakepit.WorkerSupervisor, worker) == :ok
  end

  test "strays that the kernel does not let it end are named" do
    counts = %{stopped: 1, killed: 0, survivors: []}
    strays = [{71, "one"}, {72, "other"}]
    refused = {:error, {:emfile, nil}}
    assert %{stopped: 1, survivors: [71, 72]} = Strays.outcome(counts, strays, refused)
    assert {:again, counts} = Strays.outcome(counts, strays, {:ok, [:stopped, :killed]})
    assert counts == %{stopped: 2, killed: 1, survivors: []}
  end
end
