defmodule Snakepit.OwnersTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, LogFile, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  @telemetry Path.expand("../fixtures/telemetry.exs", __DIR__)

  defp registered(beam),
    do: Beam.run(beam, "for {id, _} <- Snakepit.Pool.ProcessRegistry.list_all_workers(), do: id")

  defp ledger(beam),
    do: Beam.run(beam, "for entry <- Snakepit.Pool.PIDLedger.all(), do: entry.worker_id")

  defp kill_owner(beam, id) do
    Beam.run(
      beam,
      "{:ok, info} = Snakepit.Pool.ProcessRegistry.get_worker_info(#{inspect(id)}); Process.exit(info.owner, :kill)"
    )
  end

  # Returns when the whole tree is there again.
  defp crash(beam, name) do
    Beam.run(beam, "Snakepit.Test.OwnDirectory.crash(#{inspect(name)}) && :ok")
  end

  test "the process of an owner that dies is ended, and then its entry goes" do
    beam = Beam.start()
    families = for id <- ["a", "b", "c"], do: {id, Family.start(beam, id)}

    :ok =
      Beam.run(beam, "spawn(fn -> Snakepit.Pool.ProcessRegistry.reserve_worker(\"r\") end); :ok")

    for id <- ["a", "b"], do: kill_owner(beam, id)
    eventually(fn -> registered(beam) == ["c"] end)
    # The entry goes when its process is gone; the guardian ends what that had started.
    for {id, family} <- families,
        id != "c",
        do: eventually(fn -> Family.members(family) == [] end)

    assert ledger(beam) == ["c"]
    assert length(Family.members(families |> List.last() |> elem(1))) == 4
  end

  test "an entry is not removed while its process lives" do
    beam = Beam.start()
    family = Family.start(beam, "w")

    assert {:error, :alive} =
             Beam.run(
               beam,
               "with {:error, error} <- Snakepit.Pool.ProcessRegistry.unregister_worker(\"w\"), do: {:error, error.reason}"
             )

    assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.cleanup_dead_workers()") == 0

    assert {:error, :survivors} =
             Beam.run(
               beam,
               "with {:error, error} <- Snakepit.Pool.PIDLedger.clear(), do: {:error, error.reason}"
             )

    assert registered(beam) == ["w"]
    assert ledger(beam) == ["w"]
    assert length(Family.members(family)) == 4
  end

  test "a registry that crashes knows its workers again, and no worker notices" do
    beam = Beam.start()
    log = LogFile.open(beam)
    family = Family.start(beam, "w")
    other = Family.start(beam, "other")

    [os_pid] =
      Beam.run(beam, "for %{id: \"w\", os_pid: os_pid} <- Snakepit.workers(), do: os_pid")

    crash(beam, Snakepit.Pool.ProcessRegistry)

    assert Enum.sort(registered(beam)) == ["other", "w"]

    assert [^os_pid] =
             Beam.run(beam, "for %{id: \"w\", os_pid: os_pid} <- Snakepit.workers(), do: os_pid")

    for token <- [family, other], do: assert(length(Family.members(token)) == 4)

    # And it watches their owners again.
    kill_owner(beam, "other")
    eventually(fn -> registered(beam) == ["w"] end)
    # The entry goes with the worker's own process; the guardian ends the rest of the tree.
    eventually(fn -> Family.members(other) == [] end)
    assert length(Family.members(family)) == 4
    # The registry's own end is the supervisor's business; nobody else has crashed.
    refute log.() =~ "GenServer Snakepit"
    refute log.() =~ "terminating"
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    assert Family.members(family) == []
  end

  test "a ledger that crashes takes the workers with it, and loses nothing" do
    beam = Beam.start()
    id = Beam.run(beam, "Snakepit.run_id()")
    family = Family.start(beam, "w")

    crash(beam, Snakepit.Pool.PIDLedger)

    assert Family.members(family) == []
    assert Beam.run(beam, "Snakepit.RunState.current()") == :running
    assert Beam.run(beam, "Snakepit.run_id()") == id
    assert %{stale_entries: stale} = Beam.run(beam, "Snakepit.Auditor.audit()")
    assert stale in 0..1
    eventually(fn -> registered(beam) == [] end)
    again = Family.start(beam, "w")
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    assert Family.members(again) == []
    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")

    assert [%{run_id: ^id, terminated_by: :clean_shutdown}] =
             Beam.run(beam, "Snakepit.RunState.history()")
  end

  test "the auditor ends what has our marks and is not below the guardian, and forgets the dead" do
    bystanders = Family.bystanders()
    beam = Beam.start([audit_interval_ms: 600_000], libraries: [@telemetry])
    family = Family.start(beam, "w")
    token = Family.token()

    # Started by somebody else in that BEAM, with the marks of a worker; one with another run's.
    start = fn run_id ->
      Beam.run(beam, """
      run = Snakepit.Run.current!()
      {:ok, marks} = Snakepit.Native.marker_environment(#{run_id}, "x", run.instance)
      env = for {name, value} <- marks, do: {String.to_charlist(name), String.to_charlist(value)}
      port = Port.open({:spawn_executable, System.find_executable("sleep")}, [args: ["#{token}"], env: env])
      {:os_pid, os_pid} = Port.info(port, :os_pid)
      os_pid
      """)
    end

    ours = start.("run.id")
    others = start.(~s|"zzzzzzz"|)
    eventually(fn -> length(Family.members(token)) == 2 end)
    assert %{orphans: 1, stale_entries: 0} = Beam.run(beam, "Snakepit.Auditor.audit()")
    refute ProcScan.running?(ours)
    assert ProcScan.running?(others)
    # Nobody else's to end.
    {_output, 0} = System.cmd("kill", ["-KILL", "#{others}"])
    assert length(Family.members(family)) == 4
    assert Enum.all?(bystanders, &ProcScan.running?/1)

    # One that is registered and gone, without its owner's knowledge.
    assert %{orphans: 0, stale_entries: 1} =
             Beam.run(beam, """
             :ok = Snakepit.Pool.ProcessRegistry.reserve_worker("dead")
             port = Port.open({:spawn_executable, System.find_executable("sleep")}, [args: ["60"]])
             {:os_pid, os_pid} = Port.info(port, :os_pid)
             :ok = Snakepit.Pool.ProcessRegistry.activate_worker("dead", self(), os_pid)
             :ok = Snakepit.ProcessKiller.kill_with_escalation(os_pid)
             Snakepit.Auditor.audit()
             """)

    assert registered(beam) == ["w"]

    events =
      Beam.run(
        beam,
        "for {[:snakepit, :audit, :completed], measurements, _} <- :telemetry.events(), do: measurements"
      )

    assert [%{count: 1, orphans: 1}, %{orphans: 0, stale_entries: 1, duration_ms: _}] = events
  end
end
