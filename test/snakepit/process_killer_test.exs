defmodule Snakepit.ProcessKillerTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.{Error, Guardian, OSProcess, ProcessKiller, RunID}
  alias Snakepit.Test.{ProcScan, Program}

  doctest ProcessKiller

  @own_pid String.to_integer(System.pid())

  defp own_group, do: ProcScan.stat(@own_pid).group

  describe "what is never signalled" do
    test "no pid, init, the BEAM itself: refused by every function" do
      for target <- [0, 1, -1, -@own_pid, @own_pid, Bitwise.bsl(1, 31), Bitwise.bsl(1, 80)],
          call <- [
            &ProcessKiller.kill_process/1,
            &ProcessKiller.kill_process(&1, :sigkill),
            &ProcessKiller.kill_with_escalation(&1, 10),
            &ProcessKiller.kill_with_escalation([&1], 10)
          ] do
        assert {:error, %Error{reason: :refused} = error} = call.(target)
        assert Exception.message(error) =~ ~r/failed/
      end
    end

    test "the BEAM's own group, by number and by leader" do
      for target <- [0, 1, -1, own_group(), Bitwise.bsl(1, 31)],
          call <- [
            &ProcessKiller.kill_process_group(&1, :sigkill),
            &ProcessKiller.kill_process_group_with_escalation(&1, 10)
          ] do
        assert {:error, %Error{reason: :refused}} = call.(target)
      end

      {:ok, beam} = OSProcess.lookup(@own_pid)
      assert {:error, %Error{reason: :refused}} = ProcessKiller.kill_process(beam, :sigkill)
    end

    test "the guardian, by pid, by identity and by group" do
      guardian = Guardian.os_pid()
      {:ok, process} = OSProcess.lookup(guardian)

      for target <- [guardian, process],
          call <- [
            &ProcessKiller.kill_process(&1, :sigkill),
            &ProcessKiller.kill_with_escalation(&1, 10),
            &ProcessKiller.kill_process_group(&1, :sigkill),
            &ProcessKiller.kill_process_group_with_escalation(&1, 10)
          ] do
        assert {:error, %Error{reason: :refused}} = call.(target)
      end

      group = ProcScan.stat(guardian).group
      assert {:error, %Error{reason: :refused}} = ProcessKiller.kill_process_group(group)
      assert Guardian.os_pid() == guardian
    end

    test "the caller's mistakes raise before anything happens" do
      os_pid = Program.sleeper()

      for target <- [:init, 1.5, "1", nil, [1.5], self()],
          call <- [
            &ProcessKiller.kill_process/1,
            &ProcessKiller.kill_with_escalation/1,
            &ProcessKiller.kill_process_group/1,
            &ProcessKiller.kill_process_group_with_escalation/1,
            &ProcessKiller.process_alive?/1,
            &ProcessKiller.get_process_command/1
          ],
          not (is_list(target) and call == (&ProcessKiller.kill_with_escalation/1)),
          # `nil` is the empty list to `List.wrap/1`, and an empty list is nobody.
          target != nil do
        assert_raise ArgumentError, ~r/expected .*, got: /, fn -> call.(target) end
      end

      for signal <- [:sigfoo, :SIGTERM, 0, -9, 1000, 9.0, "9", nil] do
        assert_raise ArgumentError,
                     ~r/expected a signal .* got: #{Regex.escape(inspect(signal))}/,
                     fn ->
                       ProcessKiller.kill_process(os_pid, signal)
                     end

        assert_raise ArgumentError, fn -> ProcessKiller.kill_process_group(os_pid, signal) end
      end

      for timeout <- [-1, 1.0, :infinity, nil, Bitwise.bsl(1, 64)] do
        assert_raise ArgumentError, ~r/milliseconds/, fn ->
          ProcessKiller.kill_with_escalation(os_pid, timeout)
        end
      end

      assert ProcScan.running?(os_pid)
    end
  end

  describe "kill_process/2" do
    test "sends the signal, by name and by number" do
      for signal <- [:sigterm, :sigkill, 15, 9, :sigusr1] do
        os_pid = Program.sleeper()
        assert ProcessKiller.kill_process(os_pid, signal) == :ok
        eventually(fn -> not ProcScan.running?(os_pid) end)
      end
    end

    test "is content when the process is gone, by pid and by identity" do
      {:ok, process} = OSProcess.lookup(Program.sleeper())
      assert ProcessKiller.kill_process(process, :sigkill) == :ok
      eventually(fn -> ProcScan.stat(process.os_pid) == nil end)
      assert ProcessKiller.kill_process(process, :sigkill) == :ok
      assert ProcessKiller.kill_process(process.os_pid, :sigkill) == :ok
    end
  end

  describe "process_alive?/1" do
    test "is false for a zombie and for nobody" do
      parent = Program.sinner("leaves_a_zombie")
      assert %{os_pid: zombie} = Enum.find(ProcScan.all(), &(&1.parent == parent))
      assert ProcScan.stat(zombie).state == "Z"
      refute ProcessKiller.process_alive?(zombie)
      assert ProcessKiller.kill_with_escalation(zombie) == :ok

      for nobody <- [0, -1, 4_194_304, Bitwise.bsl(1, 40)] do
        refute ProcessKiller.process_alive?(nobody)
      end
    end

    test "is true for a stopped process and for another user's" do
      os_pid = Program.sleeper()
      :ok = ProcessKiller.kill_process(os_pid, :sigstop)
      eventually(fn -> ProcScan.stat(os_pid).state == "T" end)
      assert ProcessKiller.process_alive?(os_pid)
      assert ProcessKiller.process_alive?(1)
    end
  end

  describe "kill_with_escalation/2" do
    test "asks first and returns when the process is gone" do
      os_pid = Program.sleeper()
      assert ProcessKiller.kill_with_escalation(os_pid) == :ok
      refute ProcScan.running?(os_pid)
    end

    test "kills one that ignores SIGTERM, after the grace period" do
      os_pid = Program.sinner("ignores_sigterm")
      {time, result} = :timer.tc(fn -> ProcessKiller.kill_with_escalation(os_pid, 300) end)
      assert result == :ok
      refute ProcScan.running?(os_pid)
      assert div(time, 1000) >= 300
    end

    test "ends a stopped process without waiting for the grace period" do
      os_pid = Program.sleeper()
      :ok = ProcessKiller.kill_process(os_pid, :sigstop)
      eventually(fn -> ProcScan.stat(os_pid).state == "T" end)
      {time, :ok} = :timer.tc(fn -> ProcessKiller.kill_with_escalation(os_pid, 30_000) end)
      refute ProcScan.running?(os_pid)
      assert time < 15_000_000
    end

    @tag :long
    test "gives many processes one grace period together" do
      os_pids = for _ <- 1..20, do: Program.sinner("ignores_sigterm")
      {time, result} = :timer.tc(fn -> ProcessKiller.kill_with_escalation(os_pids, 1_000) end)
      assert result == :ok
      refute Enum.any?(os_pids, &ProcScan.running?/1)
      # One after the other they would have twenty.
      assert div(time, 1000) in 1_000..10_000
    end

    test "leaves the schedulers alone while it waits" do
      # As many waits as there are schedulers: if each took one, nobody would run before the first is over.
      os_pids = for _ <- 1..System.schedulers_online(), do: Program.sinner("ignores_sigterm")
      kill = &ProcessKiller.kill_with_escalation(&1, 30_000)
      tasks = for os_pid <- os_pids, do: Task.async(fn -> kill.(os_pid) end)
      for _ <- 1..1_000, do: RunID.generate()
      assert Enum.map(Task.yield_many(tasks, 0), &elem(&1, 1)) == Enum.map(tasks, fn _ -> nil end)
      for os_pid <- os_pids, do: {_, 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
      assert Enum.uniq(Task.await_many(tasks, 60_000)) == [:ok]
    end
  end

  describe "process groups" do
    # A port's program is the leader of a group of its own.
    test "are signalled as a whole" do
      leader =
        Program.start("sh", ["-c", "sleep 600 & sleep 600 & echo ready; wait"], ready: true)

      members = for %{group: ^leader, os_pid: os_pid} <- ProcScan.all(), do: os_pid
      assert length(members) == 3
      assert ProcessKiller.get_process_group_id(List.last(members)) == {:ok, leader}

      assert ProcessKiller.kill_process_group(leader, :sigkill) == :ok
      eventually(fn -> not Enum.any?(members, &ProcScan.running?/1) end)
      assert ProcessKiller.kill_process_group(leader) == :ok
    end

    test "are ended with escalation, by leader, whatever their members do" do
      bystander = Program.sleeper()
      leader = Program.sinner("ignores_sigterm", ["3"])
      {:ok, process} = OSProcess.lookup(leader)
      members = for %{group: ^leader, os_pid: os_pid} <- ProcScan.all(), do: os_pid
      assert length(members) == 4

      assert ProcessKiller.kill_process_group_with_escalation(process, 200) == :ok
      refute Enum.any?(members, &ProcScan.running?/1)
      assert ProcessKiller.kill_process_group_with_escalation(process) == :ok
      assert ProcScan.running?(bystander)
    end

    test "whose leader is gone are ended by number, and left alone by identity" do
      leader = Program.start("sh", ["-c", "sleep 600 & echo ready; read _"], ready: true)
      {:ok, process} = OSProcess.lookup(leader)
      [member] = for %{parent: ^leader, os_pid: os_pid} <- ProcScan.all(), do: os_pid
      :ok = ProcessKiller.kill_process(leader, :sigkill)
      eventually(fn -> ProcScan.stat(leader) == nil end)

      assert {:error, %Error{reason: :ambiguous}} = ProcessKiller.kill_process_group(process)
      assert ProcScan.running?(member)
      assert ProcessKiller.kill_process_group_with_escalation(leader) == :ok
      refute ProcScan.running?(member)
    end
  end

  describe "run ids" do
    setup do
      id = RunID.generate()
      %{id: id, environment: [env: [{~c"SNAKEPIT_RUN_ID", String.to_charlist(id)}]]}
    end

    test "are found in the environment and in the arguments", %{id: id, environment: environment} do
      script = ["-c", "read _", "worker"]

      expected = [
        Program.sleeper(environment),
        Program.start("sh", script ++ ["--run-id", id]),
        Program.start("sh", script ++ ["--run-id=#{id}"]),
        Program.start("sh", script ++ ["--snakepit-run-id", id])
      ]

      assert {:ok, found} = ProcessKiller.find_by_run_id(id)
      assert found |> Enum.map(& &1.os_pid) |> Enum.sort() == Enum.sort(expected)
      assert ProcessKiller.kill_by_run_id(id) == {:ok, 4}
      refute Enum.any?(expected, &ProcScan.running?/1)
      assert ProcessKiller.find_by_run_id(id) == {:ok, []}
      assert ProcessKiller.kill_by_run_id(id) == {:ok, 0}
    end

    test "match as whole tokens only", %{id: id, environment: environment} do
      script = ["-c", "read _", "worker"]
      other = String.to_charlist(RunID.generate())

      bystanders = [
        Program.sleeper(env: [{~c"SNAKEPIT_RUN_ID", String.to_charlist(id <> "q")}]),
        Program.sleeper(env: [{~c"SNAKEPIT_RUN_ID", ~c"x" ++ String.to_charlist(id)}]),
        Program.sleeper(env: [{~c"NOT_SNAKEPIT_RUN_ID", String.to_charlist(id)}]),
        Program.start("sh", script ++ ["--run-id", id <> "q"]),
        Program.start("sh", script ++ ["--run-id=#{id}q"]),
        Program.start("sh", script ++ [id]),
        Program.start("sh", ["-c", "read _ # --run-id #{id}"]),
        Program.start("sh", script ++ ["--run-id", id], env: [{~c"SNAKEPIT_RUN_ID", other}])
      ]

      os_pid = Program.sleeper(environment)
      assert ProcessKiller.kill_by_run_id(id) == {:ok, 1}
      refute ProcScan.running?(os_pid)
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "end what a process has scattered, its scrubbed descendants too", context do
      root = Program.sinner("scatters_children", [], context.environment)
      tree = [root | ProcScan.descendants(root)]
      assert length(tree) >= 6
      assert {:ok, count} = ProcessKiller.kill_by_run_id(context.id)
      assert count == length(tree)
      refute Enum.any?(tree, &ProcScan.running?/1)
    end

    test "kill what ignores SIGTERM after :timeout", context do
      os_pid = Program.sinner("ignores_sigterm", [], context.environment)
      assert ProcessKiller.kill_by_run_id(context.id, timeout: 100) == {:ok, 1}
      refute ProcScan.running?(os_pid)
    end

    @tag :root
    test "leave another user's process alone unless asked", %{id: id, environment: environment} do
      arguments = ["--reuid", "65534", "--clear-groups", "sleep", "600"]
      os_pid = Program.start("setpriv", arguments, environment)
      eventually(fn -> File.stat!("/proc/#{os_pid}").uid == 65_534 end)

      assert ProcessKiller.find_by_run_id(id) == {:ok, []}
      assert ProcessKiller.kill_by_run_id(id) == {:ok, 0}
      assert ProcScan.running?(os_pid)
      assert ProcessKiller.kill_by_run_id(id, any_user: true) == {:ok, 1}
      refute ProcScan.running?(os_pid)
    end

    @tag :root
    @tag :long
    test "end a fork bomb whose children all call setsid", %{id: id, environment: environment} do
      fork_bomb = Path.expand("../fixtures/fork_bomb.py", __DIR__)
      uid = 54_000 + rem(@own_pid, 1_000)
      bystanders = for _ <- 1..3, do: Program.start("python3", [fork_bomb, "innocent"])

      limits = ~w(--reuid #{uid} --clear-groups prlimit --nproc=200)
      Program.start("setpriv", limits ++ ["python3", fork_bomb], environment)
      eventually(fn -> length(ProcScan.of_user(uid)) > 150 end)

      assert {:ok, count} = ProcessKiller.kill_by_run_id(id, any_user: true, timeout: 50)
      assert count > 150
      assert ProcScan.of_user(uid) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "that are none are an error, and options are checked" do
      for id <- ["", "k3x9a2", "k3x9a2pq", "K3X9A2P"] do
        assert {:error, %Error{reason: :invalid_run_id}} = ProcessKiller.kill_by_run_id(id)
        assert {:error, %Error{reason: :invalid_run_id}} = ProcessKiller.find_by_run_id(id)
      end

      assert_raise ArgumentError, fn -> ProcessKiller.kill_by_run_id(:k3x9a2p) end

      assert_raise ArgumentError, ~r/:grace/, fn ->
        ProcessKiller.kill_by_run_id("k3x9a2p", grace: 1)
      end

      assert_raise ArgumentError, fn -> ProcessKiller.kill_by_run_id("k3x9a2p", any_user: 1) end

      assert_raise ArgumentError, fn ->
        ProcessKiller.kill_by_run_id("k3x9a2p", timeout: -1)
      end
    end
  end

  test "who survives is named, and a process table that cannot be read is an error" do
    report = %{stopped: 1, killed: 2, survivors: [{7, "identity"}, {8, "identity"}]}
    assert {:error, %Error{reason: :survivors} = error} = ProcessKiller.stopped({:ok, report})

    assert Exception.message(error) ==
             "kill_by_run_id failed: these processes cannot be ended: [7, 8]"

    assert {:error, %Error{reason: :eacces}} = ProcessKiller.stopped({:error, {:eacces, nil}})

    assert {:error, %Error{reason: :eacces} = error} =
             ProcessKiller.found({:error, {:eacces, nil}})

    assert Exception.message(error) == "find_by_run_id failed: permission denied (eacces)"
  end

  test "commands are given as people write them" do
    os_pid = Program.start("sh", ["-c", "read _", <<255>>, "a b"])
    assert {:ok, command} = ProcessKiller.get_process_command(os_pid)
    assert String.ends_with?(command, <<" -c read _ ", 255, " a b">>)
    assert {:error, %Error{reason: :esrch}} = ProcessKiller.get_process_command(4_194_304)
    assert {:error, %Error{reason: :refused}} = ProcessKiller.get_process_group_id(0)
  end

  test "process_alive?/1 takes a process that is known, too" do
    {:ok, process} = OSProcess.lookup(Program.sleeper())
    assert ProcessKiller.process_alive?(process)
    :ok = ProcessKiller.kill_with_escalation(process)
    refute ProcessKiller.process_alive?(process)
  end
end
