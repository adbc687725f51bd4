defmodule Snakepit.GuardianTest do
  use Snakepit.Test.GuardianCase

  alias Snakepit.{Command, Error, Guardian, Stdio}
  alias Snakepit.Test.{Beam, ProcScan, Program}

  doctest Guardian

  describe "the gate" do
    test "a spawned process has run nothing until it is released" do
      marker = Path.join(Beam.temporary_directory(), "marker")
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["touch", marker]))
      assert ProcScan.running?(child.os_pid)
      assert {:ok, "snakepit_guardi\n"} = File.read("/proc/#{child.os_pid}/comm")
      refute File.exists?(marker)

      assert :ok = Guardian.release(child)
      assert {%{status: 0}, ""} = await_exit(child)
      assert await_gone(child) == 0
      assert File.exists?(marker)
    end

    @tag :root
    test "a process that has ended before its sibling let go of its gate has run" do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["true"]))
      Program.sinner("holds_a_gate", ["#{child.os_pid}"])
      assert :ok = Guardian.release(child)
      assert {%{status: 0}, ""} = await_exit(child)
      assert await_gone(child) == 0
    end

    test "a spawned process has nothing of what the guardian remembers" do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "60"]))
      assert heap_bytes(Guardian.os_pid()) > 1_000_000
      # But for what libc has of a thread, if it keeps it there.
      assert heap_bytes(child.os_pid) <= 3 * 4096
    end

    defp heap_bytes(os_pid) do
      maps = File.read!("/proc/#{os_pid}/maps")

      Enum.sum(
        for [_, first, last] <- Regex.scan(~r/^(\S+)-(\S+) .*\[heap\]$/m, maps),
            do: String.to_integer(last, 16) - String.to_integer(first, 16)
      )
    end

    test "the identity is that of the process, before and after it executes" do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "60"]))
      process = %Snakepit.OSProcess{os_pid: child.os_pid, identity: child.identity}
      assert Snakepit.OSProcess.alive?(process)
      :ok = Guardian.release(child)
      assert Snakepit.OSProcess.alive?(process)
      assert {:ok, %{pgid: pgid, session: pgid}} = Snakepit.OSProcess.info(process)
      assert pgid == child.os_pid
      :ok = Guardian.stop(child)
      refute Snakepit.OSProcess.alive?(process)
    end

    test "a caller that dies before the release leaves nothing" do
      test = self()
      command = Command.new!(cmd: ["sleep", "60"])

      caller =
        spawn(fn ->
          send(test, Guardian.spawn(command))
          receive(do: (:never -> :ok))
        end)

      assert_receive {:ok, child}
      Process.exit(caller, :kill)
      eventually(fn -> not ProcScan.running?(child.os_pid) end)
      assert {:error, %Error{reason: :esrch}} = Guardian.release(child)
    end

    test "one whose end has begun ends, and nobody waits for it" do
      child = run!(["sleep", "60"])
      assert Guardian.begin_stop(child, :sigterm, 5_000) == :ok
      assert {%{signal: :sigterm}, _tail} = await_exit(child)
      await_gone(child)
      # It is gone by now.
      assert Guardian.begin_stop(child, :sigterm, 0) == :ok
      assert {:ok, %{children: 0}} = Guardian.info()
    end

    test "one that is stopped before the release never runs" do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "60"]))
      assert :ok = Guardian.stop(child)
      refute ProcScan.running?(child.os_pid)
      assert {:error, %Error{operation: :release, reason: :esrch}} = Guardian.release(child)
    end

    test "a thousand can be in flight" do
      command = Command.new!(cmd: ["true"])

      children =
        1..1_000
        |> Task.async_stream(
          fn _ ->
            {:ok, %{id: id} = child} = Guardian.spawn(command)
            :ok = Guardian.release(child)
            receive(do: ({Guardian, ^id, {:tree_gone, 0}} -> child.os_pid))
          end,
          max_concurrency: 1_000,
          timeout: 60_000
        )
        |> Enum.map(fn {:ok, os_pid} -> os_pid end)

      assert length(children) == 1_000
      assert {:ok, %{children: 0}} = Guardian.info()
    end
  end

  describe "what cannot run" do
    test "says the step and the reason, and leaves nothing" do
      directory = Beam.temporary_directory()
      no_shebang = Path.join(directory, "no_shebang")
      File.write!(no_shebang, "echo hello\n")
      File.chmod!(no_shebang, 0o755)
      not_executable = Path.join(directory, "not_executable")
      File.write!(not_executable, "#!/bin/sh\n")

      cases = [
        {["no-such-program-anywhere"], [], :execve, :enoent},
        {["/no/such/program"], [], :execve, :enoent},
        {[directory], [], :execve, :eacces},
        {[not_executable], [], :execve, :eacces},
        {[no_shebang], [], :execve, :enoexec},
        {["sleep", "60"], [cd: "/no/such/directory"], :cd, :enoent},
        {["sleep", "60"], [stdio: {:file, "/no/such/file"}], :stdio, :enoent},
        {["sleep", "60"], [stdio: {:pipe, "no such token...."}], :stdio, :enotconn},
        {["sleep", "60"], [env: [{"PATH", "/nowhere"}]], :execve, :enoent},
        {["sleep", String.duplicate("x", 3_000_000)], [], :execve, :e2big}
      ]

      for {cmd, opts, step, reason} <- cases do
        assert {child, {:error, %Error{step: ^step, reason: ^reason} = error}} = run(cmd, opts)
        assert Exception.message(error) =~ "#{step}"
        eventually(fn -> not ProcScan.running?(child.os_pid) end)
      end

      assert {:error, %Error{step: :user, reason: :enoent}} =
               Guardian.spawn(Command.new!(cmd: ["true"], user: "no-such-user"))

      assert output(["echo", "still here"]) == "still here\n"
    end

    @tag :root
    test "a limit above the hard one, for a user without rights" do
      limits = [nofile: {10, 20}]
      # The hard limit is lowered first, as another process would find it.
      script = "ulimit -Hn 20 2>/dev/null; ulimit -n"
      assert output(["sh", "-c", script], rlimits: limits, user: 65_534) == "10\n"
    end
  end

  describe "the death of the guardian" do
    test "fails who waits, leaves nothing, and a new one works" do
      bystander = Program.sleeper()
      Process.flag(:trap_exit, true)
      running = shell("setsid sleep 600 & (env -i setsid sleep 600 &); sleep 600")
      eventually(fn -> length(ProcScan.descendants(running.os_pid)) >= 2 end)
      eventually(fn -> match?({:ok, %{adopted: 1}}, Guardian.info()) end)
      old = Guardian.os_pid()
      server = Process.monitor(Guardian)
      tree = ProcScan.descendants(old)

      stubborn = stubborn(0)
      stopping = Task.async(fn -> Guardian.stop(stubborn, timeout: 60_000) end)
      eventually(fn -> Process.info(stopping.pid, :status) == {:status, :waiting} end)
      {:ok, %{children: 2}} = Guardian.info()

      {_output, 0} = System.cmd("kill", ["-KILL", "#{old}"])
      assert {:error, %Error{reason: :guardian_down}} = Task.await(stopping)
      id = running.id
      assert_receive {Guardian, ^id, :guardian_down}, 10_000

      # At once: who speaks for the guardian ends when the sweep is over.
      assert_receive {:DOWN, ^server, :process, _, :guardian_down}, 10_000
      refute Enum.any?(tree, &ProcScan.running?/1)
      eventually(fn -> Process.whereis(Guardian) != nil end)
      assert Guardian.os_pid() != old
      assert output(["echo", "back"]) == "back\n"
      assert ProcScan.running?(bystander)
    end
  end

  test "only signals are sent" do
    child = shell("sleep 600")

    for send <- [&Guardian.signal(&1, :nonsense), &Guardian.stop(&1, signal: :nonsense)] do
      assert_raise ArgumentError, ~r/expected :signal to be a signal .*, got: :nonsense/, fn ->
        send.(child)
      end
    end

    for stop <- [&Guardian.stop(child, &1), &Guardian.stop_all/1],
        timeout <- [nil, -1, 0x80000000] do
      assert_raise ArgumentError, ~r/expected :timeout /, fn -> stop.(timeout: timeout) end
    end

    assert ProcScan.running?(child.os_pid)
  end

  test "a socket that is not there is the guardian's death, of which nobody has heard yet" do
    door = Guardian.Server.listener(Snakepit.Run.current!())
    File.rename!(door, door <> ".away")
    answers = [Guardian.connect(), Guardian.connect_socket(), Guardian.open_guard()]
    File.rename!(door <> ".away", door)
    error = {:error, %Error{operation: :connect, reason: :guardian_down}}
    assert answers == [error, error, error]

    # And one that could not be made is an error that says so.
    key = {Guardian.Server, :listener, Snakepit.run_id()}
    :persistent_term.put(key, "")
    answer = Guardian.connect()
    :persistent_term.put(key, door)
    assert {:error, %Error{reason: :enotconn}} = answer

    # Nor is there one before there is a guardian, or a run.
    :persistent_term.erase(key)
    answers = [Guardian.connect(), Guardian.connect_socket(), Guardian.open_guard()]
    :persistent_term.put(key, door)
    assert answers == [error, error, error]
    assert Guardian.Server.listener(nil) == nil
    assert {:ok, _guard} = Guardian.open_guard()

    # Pipes go over a connection of their own, and need a guardian as well.
    :persistent_term.erase(key)
    answer = Guardian.open_streams(%Stdio{output: :pipe})
    :persistent_term.put(key, door)
    assert answer == error
    channel = {Guardian.Server, :channel, Snakepit.run_id()}
    opened = :persistent_term.get(channel)
    # There was no descriptor for it when the guardian started. It is opened as soon as it can be.
    :persistent_term.erase(channel)
    :persistent_term.put(key, door <> ".away")
    answer = Guardian.open_streams(%Stdio{output: :pipe})
    :persistent_term.put(key, door)
    assert answer == error
    assert {:ok, ends, _stdio} = Guardian.open_streams(%Stdio{output: :pipe})
    Stdio.close(ends)
    {:ok, socket, _token} = Guardian.connect()
    assert Guardian.disconnect(socket) == :ok
    assert {:ok, _another} = :persistent_term.get(channel)
    :persistent_term.put(channel, opened)
    assert Guardian.Server.channel(nil) == {:error, {:closed, nil}}

    # Who tries again and again does not collect what did not work.
    assert :socket.which_sockets(self()) == []
    assert Enum.filter(elem(Process.info(self(), :links), 1), &is_port/1) == []
  end

  test "where no socket can be made, what needs none works, and the rest says why" do
    # Too long for the address of a socket, and no other place.
    long = Path.join(Beam.temporary_directory(), String.duplicate("x", 120))
    beam = Beam.start([data_dir: long], env: [{"TMPDIR", Path.join(long, "missing")}])

    assert Beam.run(beam, """
           Process.flag(:trap_exit, true)
           {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "600"])

           for options <- [[stdio: :pipe], [heartbeat: true]] do
             {:error, error} = Snakepit.Worker.start_link([cmd: ["cat"]] ++ options)
             {error.reason, Exception.message(error) =~ "no socket can be made"}
           end ++ [Snakepit.Worker.stop(worker)]
           """) == [{:enotconn, true}, {:enotconn, true}, :ok]

    Beam.kill(beam)
  end
end
