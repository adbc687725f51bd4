defmodule Snakepit.Pool.ProcessRegistryTest do
  use Snakepit.Test.OwnDirectory, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Command, Error, Guardian, Native, Run}
  alias Snakepit.Ledger.Journal
  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}
  alias Snakepit.Pool.ProcessRegistry.Table
  alias Snakepit.Test.{Program, ProcScan, Workers}

  doctest ProcessRegistry

  defp start!(id) do
    {:ok, child} = Workers.start(id, ["sleep", "600"])
    child
  end

  # Whether the registry monitors an owner, when it has done what it was asked before.
  defp watched?(owner) do
    ProcessRegistry.sweep_reservations()

    case Process.info(owner, :monitored_by) do
      {:monitored_by, pids} -> Process.whereis(ProcessRegistry) in pids
      nil -> false
    end
  end

  # A process that did something and lives on.
  defp agent(fun) do
    asker = self()

    pid =
      spawn(fn ->
        send(asker, {self(), fun.()})
        Process.sleep(:infinity)
      end)

    receive do
      {^pid, answer} -> {pid, answer}
    end
  end

  test "reads tell what there is" do
    child = start!("w")
    :ok = ProcessRegistry.reserve_worker("r")
    run_id = Snakepit.run_id()
    assert ProcessRegistry.get_run_id() == run_id
    assert ProcessRegistry.get_active_process_pids() == [child.os_pid]
    assert ProcessRegistry.pids_for_run(run_id) == [child.os_pid]
    assert ProcessRegistry.pids_for_run("zzzzzzz") == []
    assert ProcessRegistry.worker_registered?("w")
    refute ProcessRegistry.worker_registered?("x")

    assert {:ok, %{status: :active, os_pid: os_pid, owner: owner}} =
             ProcessRegistry.get_worker_info("w")

    assert {os_pid, owner} == {child.os_pid, child.owner}
    assert {:ok, %{status: :reserved, os_pid: nil}} = ProcessRegistry.get_worker_info("r")
    assert {:error, %Error{reason: :not_found}} = ProcessRegistry.get_worker_info("x")
    assert ProcessRegistry.validate_workers() == []

    assert ProcessRegistry.get_stats() == %{
             total_registered: 2,
             alive_workers: 1,
             dead_workers: 0,
             active_process_pids: [child.os_pid],
             reserved: 1
           }
  end

  test "ids are strings that go into an environment" do
    for id <- ["", "a\0b", <<255>>, :atom, nil, 1] do
      assert_raise ArgumentError, ~r/:worker_id/, fn -> ProcessRegistry.reserve_worker(id) end
    end
  end

  test "a worker is activated once, by its identity, and only if it was reserved" do
    os_pid = Program.sleeper()
    {:ok, {_, identity}} = Native.process_lookup(os_pid)

    for {id, fingerprint} <- [
          {"a", identity},
          {"b", [identity: identity]},
          {"c", nil},
          {"d", [pgid: 1]}
        ] do
      assert {:error, %Error{reason: :not_reserved}} =
               ProcessRegistry.activate_worker(id, self(), os_pid, fingerprint)

      :ok = ProcessRegistry.reserve_worker(id)
      :ok = ProcessRegistry.activate_worker(id, self(), os_pid, fingerprint)
      assert {:ok, %{os_pid: ^os_pid}} = ProcessRegistry.get_worker_info(id)

      assert {:error, %Error{reason: :not_reserved}} =
               ProcessRegistry.activate_worker(id, self(), os_pid, fingerprint)
    end

    :ok = ProcessRegistry.reserve_worker("gone")

    assert {:error, %Error{operation: :activate_worker}} =
             ProcessRegistry.activate_worker("gone", self(), 0)
  end

  test "an entry goes when its process is known to be gone, and not before" do
    child = start!("w")

    assert {:error, %Error{reason: :alive, os_pid: os_pid}} =
             ProcessRegistry.unregister_worker("w")

    assert os_pid == child.os_pid
    assert ProcessRegistry.cleanup_dead_workers() == 0
    System.cmd("kill", ["-KILL", "#{child.os_pid}"])
    eventually(fn -> ProcessRegistry.validate_workers() != [] end)
    assert ProcessRegistry.cleanup_dead_workers() == 1
    assert ProcessRegistry.unregister_worker("w") == :ok
    assert PIDLedger.all() == []
  end

  test "an owner that dies has its process ended; a reservation of one goes at once" do
    child = start!("w")
    {holder, :ok} = agent(fn -> ProcessRegistry.reserve_worker("r") end)
    Process.exit(holder, :kill)
    eventually(fn -> not ProcessRegistry.worker_registered?("r") end)
    Process.exit(child.owner, :kill)
    eventually(fn -> not ProcessRegistry.worker_registered?("w") end)
    refute ProcScan.running?(child.os_pid)
  end

  test "owners that die while others are being ended have their turn" do
    children = for n <- 1..30, do: start!("w#{n}")
    for child <- children, do: spawn(fn -> Process.exit(child.owner, :kill) end)
    eventually(fn -> ProcessRegistry.list_all_workers() == [] end)
    refute Enum.any?(children, &ProcScan.running?(&1.os_pid))
  end

  test "an owner that has handed on its worker may die" do
    os_pid = Program.sleeper()
    {first, :ok} = agent(fn -> ProcessRegistry.reserve_worker("w") end)
    monitor = Process.monitor(first)
    GenServer.cast(ProcessRegistry, :watch_new)
    # What has happened to the first is heard before what has come of the worker.
    :ok = :sys.suspend(ProcessRegistry)
    Process.exit(first, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^first, :killed}
    :ok = ProcessRegistry.activate_worker("w", self(), os_pid)
    :ok = :sys.resume(ProcessRegistry)
    assert ProcessRegistry.cleanup_dead_workers() == 0
    assert {:ok, %{status: :active}} = ProcessRegistry.get_worker_info("w")
    assert ProcScan.running?(os_pid)
  end

  test "the owner of a worker that was forgotten meanwhile is not watched" do
    ProcessRegistry.Table.note_new("forgotten", self())
    send(ProcessRegistry, :watch_new)
    refute watched?(self())
  end

  test "reservations that come to nothing are swept, those of the moment are not" do
    :ok = ProcessRegistry.reserve_worker("old")
    assert ProcessRegistry.sweep_reservations() == 0
    eventually(fn -> ProcessRegistry.sweep_reservations(0) == 1 end)
    refute ProcessRegistry.worker_registered?("old")

    assert {:error, %Error{reason: :not_reserved}} =
             ProcessRegistry.activate_worker("old", self(), 1, "x")

    # By itself, every few seconds; and whatever else it is sent does not matter.
    registry = Process.whereis(ProcessRegistry)

    for message <- [:sweep, :nonsense, {:DOWN, make_ref(), :process, self(), :x}, :end_dying],
        do: send(registry, message)

    assert ProcessRegistry.sweep_reservations() == 0
    assert Process.whereis(ProcessRegistry) == registry
  end

  test "what the ledger cannot take does not happen, and what it cannot forget stays", %{run: run} do
    child = start!("w")
    :ok = ProcessRegistry.reserve_worker("r")
    :ok = ProcessRegistry.reserve_worker("held")
    lose_directory(run)

    assert {:error, %Error{operation: :activate_worker, reason: :estale}} =
             ProcessRegistry.activate_worker("r", self(), child.os_pid)

    assert {:ok, %{status: :reserved}} = ProcessRegistry.get_worker_info("r")

    # By now it is known that nothing can be written.
    assert {:error, %Error{operation: :reserve_worker, reason: :estale}} =
             ProcessRegistry.reserve_worker("new")

    refute ProcessRegistry.worker_registered?("new")

    # Tried again by whoever comes by, as it was not taken by anybody.
    :ok = Guardian.stop(child)

    for _ <- 1..2 do
      assert {:error, %Error{operation: :unregister_worker, reason: :estale}} =
               ProcessRegistry.unregister_worker("w")

      assert [{"w", _, gate}] = :ets.lookup(ProcessRegistry, "w")
      assert :atomics.get(gate, 1) == 0
    end

    # A reservation names no process, whatever the ledger goes on to say of it.
    assert ProcessRegistry.unregister_worker("held") == :ok
    refute ProcessRegistry.worker_registered?("held")
  end

  test "the name of an owner that died before anybody watched it is free again" do
    # It looks for new owners by itself too, each second.
    :ok = :sys.suspend(ProcessRegistry)
    {owner, :ok} = agent(fn -> ProcessRegistry.reserve_worker("w") end)
    monitor = Process.monitor(owner)
    Process.exit(owner, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^owner, :killed}
    assert {:error, %Error{reason: :already_registered}} = ProcessRegistry.reserve_worker("w")
    :ok = :sys.resume(ProcessRegistry)
    eventually(fn -> not ProcessRegistry.worker_registered?("w") end)
    assert ProcessRegistry.reserve_worker("w") == :ok
  end

  test "one that is forgotten before anybody watches its owner is not watched" do
    :ok = ProcessRegistry.reserve_worker("w")
    :ok = ProcessRegistry.unregister_worker("w")
    GenServer.cast(ProcessRegistry, :watch_new)
    refute watched?(self())
  end

  @tag config: [cleanup_max_retries: 1, cleanup_retry_interval_ms: 1]
  test "who gives up says so, and its entry stays", %{run: run} do
    child = start!("w")
    registry = Process.whereis(ProcessRegistry)
    # That it is done with a dead owner shows nowhere else.
    known? = fn -> Map.has_key?(:sys.get_state(registry).workers, "w") end
    eventually(known?)
    lose_directory(run)

    # What a gone process leaves in a ledger that cannot be written is no news until something fails.
    {:error, %Error{reason: :estale}} = PIDLedger.register_process("x")

    log =
      capture_log(fn ->
        Process.exit(child.owner, :kill)

        # Noticed, and then done with.
        eventually(fn -> not known?.() end)

        eventually(fn ->
          match?(%{dying: dying, ending: nil} when dying == %{}, :sys.get_state(registry))
        end)
      end)

    assert ProcessRegistry.worker_registered?("w")
    assert log =~ "a worker's owner is gone, but"
  end

  test "after a crash it knows its workers again, and lets go of reservations" do
    child = start!("w")
    :ok = ProcessRegistry.reserve_worker("r")
    crash(ProcessRegistry)
    assert {:ok, %{os_pid: os_pid, owner: owner}} = ProcessRegistry.get_worker_info("w")
    assert {os_pid, owner} == {child.os_pid, child.owner}
    assert ProcScan.running?(child.os_pid)
    eventually(fn -> not ProcessRegistry.worker_registered?("r") end)
    assert Workers.stop(child) == :normal
  end

  test "an owner that is no pid, as a damaged record may have it, is nobody" do
    run = Run.current!()
    record = {:worker, "odd", run.id, :reserved, nil, nil, nil, "no pid", [], 1}
    :ok = Journal.append(run.journal, record)
    crash(ProcessRegistry)
    eventually(fn -> not ProcessRegistry.worker_registered?("odd") end)
    assert :ok = ProcessRegistry.reserve_worker("odd")
    assert :ok = ProcessRegistry.unregister_worker("odd")
  end

  test "without it nothing is registered or forgotten, and each function says why" do
    child = start!("w")

    without_supervisor(fn ->
      Process.exit(Process.whereis(ProcessRegistry), :kill)
      eventually(fn -> Process.whereis(ProcessRegistry) == nil end)

      for answer <- [
            ProcessRegistry.reserve_worker("other"),
            ProcessRegistry.activate_worker("w", self(), child.os_pid, child.identity),
            ProcessRegistry.activate_child("w", child, []),
            ProcessRegistry.unregister_worker("w")
          ] do
        assert {:error, %Error{reason: :registry_down} = error} = answer

        assert Exception.message(error) =~
                 ~r/\(worker .+\): the registry of workers is being started again/
      end

      gone = %{worker_id: "w", identity: nil}
      assert {:error, %Error{reason: :registry_down}} = ProcessRegistry.forget(gone)
      ask = fn -> GenServer.call(ProcessRegistry, :anything) end
      assert_raise Error, ~r/registry/, fn -> Table.await(ask, 0) end
    end)

    await_tree(ProcessRegistry, nil)
    assert Workers.stop(child) == :normal
  end

  test "a table that vanishes while it is used is told from any other mistake" do
    :ets.new(:vanishing, [:named_table, :public])
    assert Table.with_table(:vanishing, &:ets.info(&1, :size)) == 0

    assert_raise ArgumentError, fn ->
      Table.with_table(:vanishing, &:ets.insert(&1, :no_entry))
    end

    vanish = fn table ->
      :ets.delete(table)
      :ets.lookup(table, "w")
    end

    assert Table.with_table(:vanishing, vanish) == :registry_down
    assert Table.with_table(:vanishing, vanish) == :registry_down
  end

  test "any other mistake is not taken for a registry that is being started again" do
    plan = %{id: "", command: Command.new!(cmd: ["true"]), stdio: nil, lifeline: false}
    assert_raise ArgumentError, fn -> Snakepit.Launch.run(plan) end
  end

  test "whoever asks who is there waits for a registry that is being started again" do
    child = start!("lasting")

    asked =
      without_supervisor(fn ->
        Process.exit(Process.whereis(ProcessRegistry), :kill)
        eventually(fn -> Process.whereis(ProcessRegistry) == nil end)

        assert {:error, %Error{reason: :registry_down}} =
                 ProcessRegistry.get_worker_info("lasting")

        Task.async(fn ->
          {ProcessRegistry.worker_registered?("lasting"), Snakepit.workers()}
        end)
      end)

    # But not for ever.
    assert_raise Error, ~r/registry/, fn -> Table.await(fn -> :registry_down end, 0) end
    assert {true, [%{id: "lasting", os_pid: os_pid}]} = Task.await(asked)
    assert os_pid == child.os_pid
    Process.exit(child.owner, :kill)
    eventually(fn -> not ProcessRegistry.worker_registered?("lasting") end)
  end

  test "a worker that is forgotten is not watched any more, its owner's next one is" do
    # It looks for new ones each second, and when it is told to.
    look = fn -> GenServer.cast(ProcessRegistry, :watch_new) end

    for _ <- 1..2 do
      :ok = ProcessRegistry.reserve_worker("watched")
      look.()
      assert watched?(self())
      :ok = ProcessRegistry.unregister_worker("watched")
      refute watched?(self())
    end

    # The name may be taken again before the registry has heard of the first end.
    :ok = ProcessRegistry.reserve_worker("watched")
    look.()
    assert watched?(self())
    :ok = :sys.suspend(ProcessRegistry)
    :ok = ProcessRegistry.unregister_worker("watched")
    :ok = ProcessRegistry.reserve_worker("watched")
    :ok = :sys.resume(ProcessRegistry)
    assert watched?(self())
    :ok = ProcessRegistry.unregister_worker("watched")
  end

  test "of many who forget one worker at once, one does" do
    for _ <- 1..20 do
      :ok = ProcessRegistry.reserve_worker("once")
      {:ok, info} = ProcessRegistry.get_worker_info("once")
      tasks = for _ <- 1..8, do: Task.async(fn -> ProcessRegistry.forget(info) end)
      answers = Task.await_many(tasks)
      assert Enum.count(answers, &(&1 == :forgotten)) == 1
      assert Enum.count(answers, &(&1 == :passed)) == 7
      refute ProcessRegistry.worker_registered?("once")
    end
  end
end
