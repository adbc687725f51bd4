defmodule Snakepit.WorkerTest do
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  alias Snakepit.Pool
  alias Snakepit.Test.Family

  doctest Worker

  describe "start_link" do
    test "returns when the process is recorded and has executed its program" do
      {:ok, worker} = Worker.start_link(id: "recorded", cmd: ["sleep", "600"])
      os_pid = Worker.os_pid!(worker)
      assert ProcScan.name(os_pid) == "sleep"
      # There a moment later: the kernel closes the gate before it has set up the arguments.
      eventually(fn -> ProcScan.command(os_pid) == "sleep 600" end)

      assert {:ok, %{status: :active, owner: ^worker, os_pid: ^os_pid, command: ["sleep", "600"]}} =
               ProcessRegistry.get_worker_info("recorded")

      assert [%{id: "recorded", os_pid: ^os_pid, state: :alive}] = Snakepit.workers()

      assert %{id: "recorded", os_pid: ^os_pid, heartbeat: nil, cmd: ["sleep", "600"]} =
               Worker.info!(worker)

      assert Worker.stop(worker) == :ok
      refute ProcScan.running?(os_pid)
      refute ProcessRegistry.worker_registered?("recorded")
    end

    test "a program that cannot be executed: the reason, and nothing is left" do
      before = remains()

      for {cmd, reason} <- [{["no-such-program-anywhere"], :enoent}, {["/etc/passwd"], :eacces}],
          connected <- [[], [stdio: :pipe, heartbeat: true]] do
        assert {:error, %Error{reason: ^reason, step: :execve} = error} =
                 Worker.start_link([id: "absent", cmd: cmd] ++ connected)

        assert Exception.message(error) =~ inspect(hd(cmd))
        refute ProcessRegistry.worker_registered?("absent")
      end

      assert {:error, %Error{step: :cd}} =
               Worker.start_link(cmd: ["sleep", "600"], cd: "/no/such/place")

      assert {:error, %Error{step: :user}} =
               Worker.start_link(cmd: ["sleep", "600"], user: "nobody-of-that-name")

      assert remains() -- before == []
    end

    test "a failed start is one sentence in the log, and in what its supervisor says" do
      sentence =
        ~s|cannot execute "no-such-program": no such file or directory (enoent); the program, or the | <>
          "interpreter that its first line names, was not found"

      log =
        capture_log(fn ->
          child = {Worker, name: Snakepit.LogTest.Absent, cmd: ["no-such-program"]}
          {:error, reason} = Supervisor.start_link([child], strategy: :one_for_one)

          assert Exception.format_exit(reason) ==
                   "shutdown: failed to start child: Snakepit.LogTest.Absent\n" <>
                     "    ** (EXIT) #Snakepit.Error<:enoent, spawn failed (worker Snakepit.LogTest.Absent): " <>
                     sentence <> ">"
        end)

      assert [_before, entry] = String.split(log, "[error]")
      assert entry =~ "Snakepit worker Snakepit.LogTest.Absent did not start: " <> sentence
      # Not a crash, which would be reported with the state of the process.
      assert {:error, %Error{reason: :enoent} = error} =
               Worker.start_link(cmd: ["no-such-program"])

      # What a caller who is linked to it gets before OTP 26, whose `start_link` takes it out of the mailbox.
      if String.to_integer(System.otp_release()) < 26,
        do: assert_receive({:EXIT, _worker, {:shutdown, ^error}})
    end

    test "a failed start of a pool's worker is in the log as well" do
      log =
        capture_log(fn ->
          {:ok, pool} =
            Pool.start_link(id: "failing", size: 1, worker: [cmd: ["no-such-program"]])

          GenServer.stop(pool)
        end)

      assert log =~ ~s(Snakepit worker failing-1 did not start: cannot execute "no-such-program")
    end

    test "an id is used once; the second worker fails and the first lives on" do
      {:ok, first} = Worker.start_link(id: "twin", cmd: ["sleep", "600"])

      assert {:error, %Error{reason: :already_registered}} =
               Worker.start_link(id: "twin", cmd: ["sleep", "600"])

      assert ProcScan.running?(Worker.os_pid!(first))
      assert Worker.stop(first) == :ok
    end

    test "generated ids differ" do
      {:ok, one} = Worker.start_link(cmd: ["sleep", "600"])
      {:ok, other} = Worker.start_link(cmd: ["sleep", "600"])
      assert Worker.info!(one).id != Worker.info!(other).id
    end

    test "arguments, paths and variables may have spaces and any letters" do
      directory = temporary_path("mit Leer zeichen äöü 蛇")
      File.mkdir_p!(directory)
      program = Path.join(directory, "prögram $HOME")

      File.write!(
        program,
        "#!/bin/sh\nprintf '%s|%s\\n' \"$1\" \"$(pwd)\"; sleep 600\n"
      )

      File.chmod!(program, 0o755)

      {:ok, worker} =
        Worker.start_link(
          id: "ünï cödé",
          cmd: [program, "a b 'c' \"d\" * 蛇 "],
          env: [{"SNAKE", "蛇 x"}],
          cd: directory,
          output: {:send, self()},
          ready: {:output, "|"}
        )

      assert_receive {Worker, "ünï cödé", {:output, line}}
      assert line == "a b 'c' \"d\" * 蛇 |#{directory}\n"
      assert {:ok, env} = File.read("/proc/#{Worker.os_pid!(worker)}/environ")
      assert "SNAKE=蛇 x" in String.split(env, <<0>>)
      assert "SNAKEPIT_WORKER_ID=ünï cödé" in String.split(env, <<0>>)
    end

    test "the run id goes to the end of the arguments, if asked" do
      {:ok, worker} = Worker.start_link(cmd: sh("sleep 600; :") ++ ["x"], run_id_flag: "--run-id")
      os_pid = Worker.os_pid!(worker)
      eventually(fn -> ProcScan.command(os_pid) =~ ~r/x --run-id #{Snakepit.run_id()}$/ end)
      {:ok, command} = Snakepit.ProcessKiller.get_process_command(os_pid)
      assert Snakepit.RunID.extract_from_command(command) == {:ok, Snakepit.run_id()}
    end
  end

  describe "wrong options" do
    test "raise with the key, what was expected and what was given, and start nothing" do
      before = remains()

      for {opts, key, given} <- [
            {[], ":cmd", ""},
            {[cmd: "sleep 600"], ":cmd", ~s("sleep 600")},
            {[cmd: []], ":cmd", "[]"},
            {[cmd: ["sleep", 600]], ":cmd", "600"},
            {[cmd: ["sleep", "6\0"]], ":cmd", "NUL"},
            {[cmd: [""]], ":cmd", ~s([""])},
            {[cmd: ["sleep"], id: ""], ":id", ~s("")},
            {[cmd: ["sleep"], id: "a\0b"], ":id", "NUL"},
            {[cmd: ["sleep"], id: :atom], ":id", ":atom"},
            {[cmd: ["sleep"], id: <<255>>], ":id", "<<255>>"},
            {[cmd: ["sleep"], nmae: "x"], ":nmae", "unknown option"},
            {[cmd: ["sleep"], lifeline: "x"], ":lifeline", "unknown option"},
            {[cmd: ["sleep"], name: "x"], ":name", ~s("x")},
            {[cmd: ["sleep"], stdio: :pip], ":stdio", ":pip"},
            {[cmd: ["sleep"], stdio: {:pipe, "token"}], ":stdio", "token"},
            {[cmd: ["sleep"], packet: 4], ":packet", "4"},
            {[cmd: ["sleep"], stdio: :pipe, packet: 3], ":packet", "3"},
            {[cmd: ["sleep"], output: :loud], ":output", ":loud"},
            {[cmd: ["sleep"], stdio: :null, output: :logger], ":stdio", ":null"},
            {[cmd: ["sleep"], stdio: {:file, "/x"}, ready: {:output, "x"}], ":stdio", "/x"},
            {[cmd: ["sleep"], ready: :now], ":ready", ":now"},
            {[cmd: ["sleep"], ready: {:tcp, 0}], ":ready", "{:tcp, 0}"},
            {[cmd: ["sleep"], ready: :heartbeat], ":ready", "heartbeat"},
            {[cmd: ["sleep"], ready_timeout: 0], ":ready_timeout", "0"},
            {[cmd: ["sleep"], stop_signal: :sigfoo], ":stop_signal", ":sigfoo"},
            {[cmd: ["sleep"], stop_timeout: -1], ":stop_timeout", "-1"},
            {[cmd: ["sleep"], stop_timeout: nil], ":stop_timeout", "nil"},
            {[cmd: ["sleep"], stop_timeout: 5_000_000_000], ":stop_timeout", "5000000000"},
            {[cmd: ["sleep"], heartbeat: :yes], ":heartbeat", ":yes"},
            {[cmd: ["sleep"], heartbeat: [interval: 1]], ":heartbeat", ":interval"},
            {[cmd: ["sleep"], heartbeat: [ping_interval: 0]], ":heartbeat", "0"},
            {[cmd: ["sleep"], ping: :pong], ":ping", ":pong"},
            {[cmd: ["sleep"], ping: fn -> true end, heartbeat: false], ":heartbeat", "false"},
            {[cmd: ["sleep"], run_id_flag: 7], ":run_id_flag", "7"},
            {[cmd: ["sleep"], nice: 20], ":nice", "20"},
            {[cmd: ["sleep"], env: "x"], ":env", ~s("x")}
          ] do
        error = assert_raise ArgumentError, fn -> Worker.start_link(opts) end
        assert error.message =~ key
        assert error.message =~ given
      end

      assert_raise ArgumentError, ~r/keyword list/, fn -> Worker.start_link(:oops) end
      assert remains() -- before == []
    end
  end

  describe "the end of the process" do
    test "status 0 is normal, others and signals say what they were, each with its output" do
      for {script, reason} <- [
            {"echo said; exit 0", :normal},
            {"echo said; exit 3", {:exit_status, 3}},
            {"echo said; kill -KILL $$", {:exit_signal, :sigkill}},
            {"echo said; kill -USR1 $$", {:exit_signal, :sigusr1}}
          ] do
        log =
          capture_log(fn ->
            {:ok, worker} =
              Worker.start_link(id: "mortal", cmd: sh("read x; #{script}"), stdio: :pipe)

            :ok = Worker.write(worker, "go\n")
            assert await_down(worker) == reason
            refute ProcessRegistry.worker_registered?("mortal")
          end)

        # With a pipe only the errors are kept.
        refute log =~ "said"

        log =
          capture_log([level: :debug], fn ->
            {:ok, worker} = Worker.start_link(id: "mortal", cmd: sh("sleep 0.05; #{script}"))
            assert await_down(worker) == reason
          end)

        assert log =~ "said"
        assert log =~ "Snakepit worker mortal"
      end
    end

    test "what a program that ended by itself has left behind is counted, with what to do about it" do
      token = Family.token()
      # They ignore the stop signal, and say so before the shell ends.
      child = "(trap '' TERM; echo deaf; exec sleep #{token}) &"

      for {status, reason, advice} <- [
            {0, :normal, "; a worker's program must stay in the foreground"},
            {3, {:exit_status, 3}, ""}
          ] do
        log =
          capture_log(fn ->
            {:ok, worker} =
              Worker.start_link(
                cmd: sh("{ #{child} #{child} } | { read a; read b; exit #{status}; }"),
                stop_timeout: 50
              )

            assert await_down(worker) == reason
          end)

        assert log =~
                 ~r/ended with status #{status} after \d+ ms; it left 2 processes behind, which were killed#{advice}\n/
      end

      assert Family.members(token) == []
    end

    test "what it has started ends with it, and the worker is not gone before" do
      token = Family.token()
      bystanders = Family.bystanders()
      # So many that it takes a while.
      script = "for i in $(seq 200); do setsid sleep #{token} & done; sleep #{token}"
      {:ok, worker} = Worker.start_link(cmd: sh(script))
      eventually(fn -> length(Family.members(token)) == 201 end, 20_000)
      members = Family.members(token)
      monitor = Process.monitor(worker)
      kill(Worker.os_pid!(worker))
      assert_receive {:DOWN, ^monitor, :process, _pid, {:exit_signal, :sigkill}}, 10_000
      # At once, and by their pids: the whole table takes longer to read than they take to die.
      refute Enum.any?(members, &ProcScan.running?/1)
      assert Family.members(token) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "is followed by a restart of the whole sequence, under any supervisor" do
      {:ok, supervisor} =
        Supervisor.start_link([{Worker, id: "phoenix", cmd: ["sleep", "600"]}],
          strategy: :one_for_one
        )

      {:ok, %{os_pid: first}} = ProcessRegistry.get_worker_info("phoenix")
      kill(first)

      second =
        eventually(fn ->
          case ProcessRegistry.get_worker_info("phoenix") do
            {:ok, %{os_pid: os_pid, status: :active}} when os_pid != first -> os_pid
            _ -> nil
          end
        end)

      assert ProcScan.running?(second)
      :ok = Supervisor.stop(supervisor)
      refute ProcScan.running?(second)
      refute ProcessRegistry.worker_registered?("phoenix")
    end
  end

  describe "the end of the worker" do
    test "its end is one line in the log, with its name and its last words, and no state" do
      for {script, said, reason} <- [
            {"echo last words; exit 3", "ended with status 3", {:exit_status, 3}},
            {"echo last words; kill -KILL $$", "was ended by sigkill", {:exit_signal, :sigkill}}
          ] do
        log =
          capture_log(fn ->
            {:ok, worker} = Worker.start_link(cmd: sh(script), name: Snakepit.LogTest.Named)
            assert_receive {:EXIT, ^worker, ^reason}, 5_000
          end)

        assert [_before, entry] = String.split(log, "[error]")
        assert entry =~ "Snakepit worker Snakepit.LogTest.Named (OS process"
        assert entry =~ said
        assert entry =~ "last words"
        refute entry =~ "terminating"
      end
    end

    test "stop/1 takes any name that start_link/1 takes" do
      start_supervised!({Registry, keys: :unique, name: Snakepit.StopTest.Names})

      for name <- [
            {:via, Registry, {Snakepit.StopTest.Names, "one"}},
            {:global, :snakepit_stop_test},
            :snakepit_stop_test
          ] do
        {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"], name: name)
        assert Worker.stop(name) == :ok
        refute Process.alive?(worker)
        assert Worker.stop(name) == :ok
      end
    end

    test "stop/1 asks first, and takes the whole tree along" do
      marker = temporary_path("graceful")
      token = Family.token()
      script = "trap 'touch #{marker}; exit 0' TERM; sleep #{token} & echo up; wait"

      {:ok, worker} =
        Worker.start_link(cmd: sh(script), ready: {:output, "up"}, stop_timeout: 30_000)

      # Until it is `sleep` it is a shell with a trap, and the signal would be lost in the exchange.
      eventually(fn -> length(Family.members(token)) == 1 end)
      assert Worker.stop(worker) == :ok
      refute Process.alive?(worker)
      assert File.exists?(marker)
      assert Family.members(token) == []
      assert Worker.stop(worker) == :ok
    end

    test "one that ignores the signal is killed after the timeout, and not before" do
      {:ok, worker} =
        Worker.start_link(
          cmd: sh("trap '' TERM; echo up; sleep 600"),
          ready: {:output, "up"},
          stop_timeout: 300
        )

      os_pid = Worker.os_pid!(worker)
      begun = System.monotonic_time(:millisecond)
      assert Worker.stop(worker) == :ok
      assert System.monotonic_time(:millisecond) - begun >= 300
      refute ProcScan.running?(os_pid)
    end

    test "another signal and timeout can be asked for, by option or by stop/2" do
      script = "trap 'exit 0' USR1; trap '' TERM; echo up; while :; do sleep 0.01; done"
      opts = [cmd: bash(script), ready: {:output, "up"}]
      {:ok, worker} = Worker.start_link(opts ++ [stop_signal: :sigusr1, stop_timeout: 60_000])
      assert Worker.stop(worker) == :ok
      {:ok, worker} = Worker.start_link(opts)
      assert Worker.stop(worker, signal: :sigusr1, timeout: 60_000) == :ok

      for opts <- [[now: true], [signal: :sigfoo], [timeout: -1]] do
        assert_raise ArgumentError, fn -> Worker.stop(self(), opts) end
      end
    end

    test "graceful on :shutdown, at once on a crash" do
      for {reason, graceful?} <- [
            {:shutdown, true},
            {{:shutdown, :why}, true},
            {:oops, false}
          ] do
        marker = temporary_path("asked")
        script = "trap 'touch #{marker}; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        opts = [cmd: bash(script), ready: {:output, "up"}, stop_timeout: 30_000]
        {:ok, worker} = Worker.start_link(opts)
        os_pid = Worker.os_pid!(worker)
        Process.exit(worker, reason)
        assert await_down(worker) == reason
        refute ProcScan.running?(os_pid)
        assert File.exists?(marker) == graceful?
      end
    end

    test "killed with :kill its tree ends too, and its id is free again" do
      token = Family.token()

      {:ok, supervisor} =
        Supervisor.start_link([{Worker, id: "victim", cmd: sh(Family.script(token))}],
          strategy: :one_for_one
        )

      Family.await(token)
      first = Family.members(token)
      [{"victim", worker, :worker, _}] = Supervisor.which_children(supervisor)
      Process.exit(worker, :kill)
      eventually(fn -> not Enum.any?(first, &ProcScan.running?/1) end)
      Family.await(token)
      assert [{"victim", second, :worker, _}] = Supervisor.which_children(supervisor)
      assert second != worker
      :ok = Supervisor.stop(supervisor)
      assert Family.members(token) == []
    end

    test "a supervisor's shutdown ends 100 workers and waits for them" do
      token = Family.token()

      children =
        for n <- 1..100, do: {Worker, id: "many-#{n}", cmd: ["sleep", token], stop_timeout: 5_000}

      {:ok, supervisor} = DynamicSupervisor.start_link(strategy: :one_for_one)
      for child <- children, do: {:ok, _} = DynamicSupervisor.start_child(supervisor, child)
      eventually(fn -> length(Family.members(token)) == 100 end)
      :ok = DynamicSupervisor.stop(supervisor)
      assert Family.members(token) == []
      assert ProcessRegistry.list_all_workers() == []
    end

    test "works below Snakepit's own supervisor" do
      {:ok, worker} =
        DynamicSupervisor.start_child(
          Snakepit.WorkerSupervisor,
          {Worker, id: "guest", cmd: ["sleep", "600"]}
        )

      os_pid = Worker.os_pid!(worker)
      :ok = DynamicSupervisor.terminate_child(Snakepit.WorkerSupervisor, worker)
      refute ProcScan.running?(os_pid)
      refute ProcessRegistry.worker_registered?("guest")
    end
  end

  test "a program that cannot live uses up its supervisor's restarts, and nothing is left" do
    children = [{Worker, id: "loop", cmd: sh("exit 7")}]
    # However long the restarts take.
    limits = [max_restarts: 3, max_seconds: 300]
    {:ok, supervisor} = Supervisor.start_link(children, [strategy: :one_for_one] ++ limits)
    assert await_down(supervisor) == :shutdown
    refute ProcessRegistry.worker_registered?("loop")
  end

  test "a signal reaches the process and its group" do
    script = "trap 'echo hup; exit 0' HUP; echo up; while :; do sleep 0.01; done"

    {:ok, worker} =
      Worker.start_link(cmd: bash(script), ready: {:output, "up"}, output: {:send, self()})

    assert Worker.signal(worker, :sighup) == :ok
    assert await_down(worker) == :normal
    assert_received {Worker, _id, {:output, "hup\n"}}

    assert_raise ArgumentError, fn ->
      Worker.start_link(cmd: ["sleep", "1"]) |> elem(1) |> Worker.signal(:sigfoo)
    end
  end
end
