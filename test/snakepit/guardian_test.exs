defmodule Snakepit.GuardianTest do
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually

  alias Snakepit.{Command, Error, Guardian, Run}
  alias Snakepit.Test.{ProcScan, Program}

  doctest Guardian

  setup do
    on_exit(fn -> Guardian.stop_all(timeout_ms: 100) end)
  end

  defp run(cmd, opts) do
    {:ok, child} = Guardian.spawn(Command.new!([cmd: cmd] ++ opts), worker_id: "test")
    {child, Guardian.release(child)}
  end

  defp run!(cmd, opts \\ []) do
    {child, :ok} = run(cmd, opts)
    child
  end

  defp shell(script, opts \\ []), do: run!(["sh", "-c", script], opts)

  defp await_exit(%{id: id}) do
    assert_receive {Guardian, ^id, {:exited, exit, tail}}, 5_000
    {exit, tail}
  end

  defp await_gone(%{id: id}) do
    assert_receive {Guardian, ^id, {:tree_gone, killed}}, 10_000
    killed
  end

  defp output(cmd, opts \\ []) do
    {%{status: 0}, tail} = cmd |> run!(opts) |> await_exit()
    tail
  end

  # Ignores SIGTERM, with this many children that do so too. Ready when it has printed a line.
  defp stubborn(children) do
    script = "trap '' TERM; #{String.duplicate("sleep 600 & ", children)} echo ready; sleep 600"
    child = shell(script)
    eventually(fn -> Guardian.output_tail(child) == {:ok, "ready\n"} end)
    child
  end

  defp fixture(name), do: Path.expand("../fixtures/#{name}", __DIR__)

  describe "the gate" do
    test "a spawned process has run nothing until it is released" do
      marker = Path.join(System.tmp_dir!(), "snakepit_gate_#{System.unique_integer([:positive])}")
      on_exit(fn -> File.rm(marker) end)
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["touch", marker]))
      assert ProcScan.running?(child.os_pid)
      assert {:ok, "snakepit_guardi\n"} = File.read("/proc/#{child.os_pid}/comm")
      refute File.exists?(marker)

      assert :ok = Guardian.release(child)
      assert {%{status: 0}, ""} = await_exit(child)
      assert await_gone(child) == 0
      assert File.exists?(marker)
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

    test "one that is stopped before the release never runs" do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "60"]))
      assert :ok = Guardian.stop(child)
      refute ProcScan.running?(child.os_pid)
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
      directory =
        Path.join(System.tmp_dir!(), "snakepit_bad_#{System.unique_integer([:positive])}")

      File.mkdir_p!(directory)
      on_exit(fn -> File.rm_rf!(directory) end)
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

  describe "environment, directory, user and limits" do
    test "markers are there and cannot be overridden" do
      run_id = Run.current!().id
      variables = output(["env"], env: [{"SNAKEPIT_RUN_ID", "forged"}, {"FOO", "bär"}])
      lines = String.split(variables, "\n")
      assert "SNAKEPIT_RUN_ID=#{run_id}" in lines
      assert "SNAKEPIT_WORKER_ID=test" in lines
      assert Enum.any?(lines, &String.starts_with?(&1, "SNAKEPIT_OWNER=#{System.pid()}:"))
      assert "FOO=bär" in lines
      assert "HOME=#{System.get_env("HOME")}" in lines
    end

    test "variables are removed by nil and altogether by :clear_env" do
      refute output(["env"], env: [{"HOME", nil}]) =~ "HOME="
      clear = output(["/usr/bin/env"], clear_env: true, env: %{"ONLY" => "this"})
      names = for line <- String.split(clear, "\n", trim: true), do: hd(String.split(line, "="))

      assert Enum.sort(names) ==
               ~w(ONLY SNAKEPIT_INSTANCE SNAKEPIT_OWNER SNAKEPIT_RUN_ID SNAKEPIT_WORKER_ID)
    end

    test "what System.put_env/2 changed since the start counts" do
      System.put_env("SNAKEPIT_TEST_LATER", "yes")
      on_exit(fn -> System.delete_env("SNAKEPIT_TEST_LATER") end)
      assert output(["sh", "-c", "echo $SNAKEPIT_TEST_LATER"]) == "yes\n"
      System.delete_env("SNAKEPIT_TEST_LATER")
      assert output(["sh", "-c", "echo $SNAKEPIT_TEST_LATER"]) == "\n"
    end

    test "directory, mask, priority and limits are as asked" do
      assert output(["pwd"], cd: "/usr/bin") == "/usr/bin\n"
      assert output(["sh", "-c", "umask"], umask: 0o027) == "0027\n"
      assert output(["nice"], nice: 5) == "5\n"
      assert output(["sh", "-c", "ulimit -n"], rlimits: [nofile: 123]) == "123\n"
      assert output(["sh", "-c", "ulimit -c"], rlimits: [core: {0, :infinity}]) == "0\n"
      assert output(["cat", "/proc/self/oom_score_adj"], oom_score_adj: 500) == "500\n"
    end

    test "what the guardian changed for itself is not passed on" do
      script =
        "ulimit -n; cat /proc/self/oom_score_adj; grep SigIgn /proc/self/status; ls /proc/self/fd"

      {own, 0} = System.cmd("sh", ["-c", "ulimit -n; cat /proc/self/oom_score_adj"])

      [descriptors, score, ignored | open] =
        String.split(output(["sh", "-c", script]), "\n", trim: true)

      assert [descriptors, score] == String.split(own, "\n", trim: true)
      assert ignored =~ ~r/SigIgn:\t0+$/
      # 3 is the directory that `ls` reads.
      assert open == ["0", "1", "2", "3"]
      assert output(["nice"]) == elem(System.cmd("nice", []), 0)
    end

    @tag :root
    test "user and groups, by name and by number" do
      nobody = output(["id"], user: "nobody")
      assert nobody =~ ~r/uid=65534\(nobody\) gid=65534\(nogroup\) groups=65534\(nogroup\)/
      assert output(["id", "-u"], user: 12_345) == "12345\n"
      assert output(["id", "-G"], user: "nobody", group: 7, groups: [8, 9]) == "7 8 9\n"
    end
  end

  describe "output" do
    test "the tail has both streams in order, and only the end" do
      assert output(["sh", "-c", "echo one; echo two >&2; echo three"]) == "one\ntwo\nthree\n"
      {_exit, tail} = shell("seq 1 100000") |> await_exit()
      assert byte_size(tail) == 65_536
      assert String.ends_with?(tail, "99999\n100000\n")
    end

    test "the tail can be asked for while the process runs" do
      child = shell("echo so far; sleep 60")
      assert eventually(fn -> Guardian.output_tail(child) == {:ok, "so far\n"} end)
    end

    test "null keeps nothing, a file gets all of it" do
      assert output(["echo", "x"], stdio: :null) == ""
      path = Path.join(System.tmp_dir!(), "snakepit_out_#{System.unique_integer([:positive])}")
      on_exit(fn -> File.rm(path) end)
      assert output(["sh", "-c", "echo one; echo two >&2"], stdio: {:file, path}) == ""
      assert output(["echo", "three"], stdio: {:file, path}) == ""
      assert File.read!(path) == "one\ntwo\nthree\n"
    end

    test "a connection carries input and output, errors go to the tail" do
      {:ok, socket, token} = Guardian.connect(packet: :line)

      child =
        shell("while read line; do echo got $line; done; echo bye >&2", stdio: {:pipe, token})

      for word <- ["one", "two"] do
        :ok = :gen_tcp.send(socket, word <> "\n")
        assert {:ok, "got #{word}\n"} == :gen_tcp.recv(socket, 0, 5_000)
      end

      :ok = :gen_tcp.shutdown(socket, :write)
      assert {%{status: 0}, "bye\n"} = await_exit(child)
      assert {:error, :closed} = :gen_tcp.recv(socket, 0, 5_000)
    end

    test "the lifeline is descriptor 3" do
      {:ok, socket, token} = Guardian.connect(packet: :line)
      child = shell("read word <&3; echo pong $word >&3", lifeline: token)
      :ok = :gen_tcp.send(socket, "ping\n")
      assert {:ok, "pong ping\n"} = :gen_tcp.recv(socket, 0, 5_000)
      assert {%{status: 0}, ""} = await_exit(child)
    end

    test "a flood costs bounded memory and delays nobody" do
      for _ <- 1..50, do: run!(["yes"])
      guardian = Guardian.os_pid()

      for _ <- 1..20 do
        child = run!(["sleep", "0"])
        {time, {%{status: 0}, _tail}} = :timer.tc(fn -> await_exit(child) end)
        assert time < 500_000
      end

      [_, kilobytes] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/#{guardian}/status"))
      assert String.to_integer(kilobytes) < 20_000
    end
  end

  describe "the end" do
    test "is reported with status, signal and usage" do
      assert {%{status: 3, signal: nil, core: false, max_rss_kb: rss}, ""} =
               await_exit(shell("exit 3"))

      assert rss > 0
      assert {%{status: nil, signal: :sigkill}, ""} = await_exit(shell("kill -KILL $$"))
    end

    test "comes at once, whoever still holds the output, and then the rest is ended" do
      child = shell("sleep 600 & setsid sleep 600 & (env -i setsid sleep 600 &); echo gone")
      {%{status: 0}, "gone\n"} = await_exit(child)
      assert await_gone(child) == 3
    end

    test "of one child leaves another's daemons alone" do
      keeper = shell("(env -i setsid sleep 600 &) ; echo ready; sleep 600")
      eventually(fn -> Guardian.output_tail(keeper) == {:ok, "ready\n"} end)
      eventually(fn -> match?({:ok, %{adopted: 1}}, Guardian.info()) end)
      other = shell("(env -i setsid sleep 600 &) ; exit 0")
      await_exit(other)
      assert await_gone(other) == 1
      assert {:ok, %{adopted: 1, children: 1}} = Guardian.info()
    end

    test "stop asks, waits, and kills the tree of what does not listen" do
      polite = run!(["sleep", "600"])
      assert :ok = Guardian.stop(polite)
      refute ProcScan.running?(polite.os_pid)

      stubborn = stubborn(2)
      eventually(fn -> length(ProcScan.descendants(stubborn.os_pid)) == 3 end)
      tree = [stubborn.os_pid | ProcScan.descendants(stubborn.os_pid)]
      {time, :ok} = :timer.tc(fn -> Guardian.stop(stubborn, timeout_ms: 300) end)
      assert div(time, 1000) in 300..3_000
      refute Enum.any?(tree, &ProcScan.running?/1)
      assert :ok = Guardian.stop(stubborn)
    end

    test "a stopped process ends when asked" do
      child = run!(["sleep", "600"])
      :ok = Guardian.signal(child, :sigstop)
      eventually(fn -> ProcScan.stat(child.os_pid).state == "T" end)
      {time, :ok} = :timer.tc(fn -> Guardian.stop(child, timeout_ms: 30_000) end)
      assert time < 10_000_000
    end

    test "signals reach the process, its group or its tree" do
      child = shell("sleep 600 & setsid sleep 600 & wait; sleep 600")
      eventually(fn -> length(ProcScan.descendants(child.os_pid)) == 2 end)
      [_, _] = below = ProcScan.descendants(child.os_pid)
      :ok = Guardian.signal(child, :sigstop, :tree)
      for os_pid <- below, do: eventually(fn -> ProcScan.stat(os_pid).state == "T" end)
      :ok = Guardian.signal(child, :sigcont, :tree)
      for os_pid <- below, do: eventually(fn -> ProcScan.stat(os_pid).state == "S" end)
      assert :ok = Guardian.stop(child)
      refute Enum.any?(below, &ProcScan.running?/1)
    end

    test "stop_all gives everyone one grace period" do
      stubborn = for _ <- 1..20, do: stubborn(0)
      polite = for _ <- 1..20, do: run!(["sleep", "600"])
      {time, {:ok, counts}} = :timer.tc(fn -> Guardian.stop_all(timeout_ms: 500) end)
      # Each stubborn shell has a `sleep` below it that is as stubborn, and may end by itself once
      # that has been killed.
      assert counts.stopped + counts.killed == 60
      assert counts.stopped >= 20 and counts.killed >= 20
      assert div(time, 1000) in 500..5_000
      refute Enum.any?(stubborn ++ polite, &ProcScan.running?(&1.os_pid))
      assert Guardian.stop_all() == {:ok, %{stopped: 0, killed: 0}}
    end

    test "an owner that dies takes its process along" do
      test = self()

      owner =
        spawn(fn ->
          send(test, {:child, shell("setsid sleep 600 & sleep 600")})
          receive(do: (:never -> :ok))
        end)

      assert_receive {:child, child}, 5_000
      eventually(fn -> length(ProcScan.descendants(child.os_pid)) == 2 end)
      tree = [child.os_pid | ProcScan.descendants(child.os_pid)]
      Process.exit(owner, :kill)
      eventually(fn -> not Enum.any?(tree, &ProcScan.running?/1) end)
    end

    @tag :root
    test "a fork bomb is ended" do
      uid = 55_000 + rem(String.to_integer(System.pid()), 1_000)
      opts = [user: uid, rlimits: [nproc: 200]]
      # It ends with its standard input, so that is held open by one that is not asked to end.
      child = shell("setsid sleep 600 | python3 #{fixture("fork_bomb.py")}", opts)
      eventually(fn -> length(ProcScan.of_user(uid)) > 150 end)
      assert :ok = Guardian.stop(child, timeout_ms: 50)
      assert ProcScan.of_user(uid) == []
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
      stopping = Task.async(fn -> Guardian.stop(stubborn, timeout_ms: 60_000) end)
      eventually(fn -> Process.info(stopping.pid, :status) == {:status, :waiting} end)
      {:ok, %{children: 2}} = Guardian.info()

      {_output, 0} = System.cmd("kill", ["-KILL", "#{old}"])
      assert {:error, %Error{reason: :guardian_down}} = Task.await(stopping)
      id = running.id
      assert_receive {Guardian, ^id, :guardian_down}, 10_000
      eventually(fn -> not Enum.any?(tree, &ProcScan.running?/1) end)

      assert_receive {:DOWN, ^server, :process, _, :guardian_down}, 10_000
      eventually(fn -> Process.whereis(Guardian) != nil end)
      assert Guardian.os_pid() != old
      assert output(["echo", "back"]) == "back\n"
      assert ProcScan.running?(bystander)
    end
  end
end
