defmodule Snakepit.Guardian.ServerTest do
  # What the server does with a guardian that misbehaves.
  use Snakepit.Test.OwnDirectory, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Command, Error, Guardian, Native, Run, RunID, Worker}
  alias Snakepit.Guardian.{Grace, Server, Shutdown, Wire}
  alias Snakepit.Ledger.Journal
  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.Test.{BadGuardian, Beam, Program, ProcScan}

  @info {"Info", [0, 0, 0]}
  @ready {"Ready", [7, 1, {:bytes, "identity"}]}
  @all_gone {"AllGone", [0, 0, []]}
  @nobody {:ok, %{children: 0, ahead: 0, adopted: 0}}

  defp start(says, opts \\ []) do
    {:ok, server} = BadGuardian.start_server(says, opts)
    # A test that fails leaves it running.
    on_exit(fn -> Process.exit(server, :kill) end)
    server
  end

  defp spawn_request do
    {:ok, request} = Command.to_request(Command.new!(cmd: ["true"]), Server.markers())
    {:spawn, Map.put(request, :worker_id, "w")}
  end

  # The answer comes after everything that the guardian has said before.
  defp info(server), do: GenServer.call(server, :info)

  # A caller that waits for a child is monitored.
  defp waits?(server, caller), do: {:process, caller} in elem(Process.info(server, :monitors), 1)

  defp port(server) do
    {:links, linked} = Process.info(server, :links)
    assert [port] = Enum.filter(linked, &is_port/1)
    port
  end

  # Without asking the server, which would have it ask the guardian whether it is there.
  defp guardian(server) do
    {:os_pid, os_pid} = server |> port() |> Port.info(:os_pid)
    os_pid
  end

  defp own_run, do: %{Run.current!() | id: RunID.generate()}

  # A process with the marks of a run. It is not below the run's guardian.
  defp start_stray(run) do
    {:ok, marks} = Snakepit.Native.marker_environment(run.id, "x", run.instance)
    env = for {name, value} <- marks, do: {String.to_charlist(name), String.to_charlist(value)}
    Program.sleeper(env: env)
  end

  describe "a start" do
    test "fails with a guardian that refuses, talks nonsense, ends or says nothing" do
      for {first, reason} <- [
            {{"Refused", ["why"]}, {:guardian_refused, "why"}},
            {"nonsense", {:guardian_failed, :malformed}},
            {:end, {:guardian_failed, {:exit_status, 3}}}
          ] do
        assert BadGuardian.start_server([[first]]) == {:error, reason}
      end

      for {first, sentence} <- [
            {{"Unable", ["pidfd_open", 1]}, "pidfd_open"},
            {:filtered, "SIGSYS"}
          ] do
        assert {:error, {%Error{} = error, _stacktrace}} = BadGuardian.start_server([[first]])
        assert Exception.message(error) =~ sentence
      end

      assert BadGuardian.start_server([], executable: BadGuardian.silent(), welcome_ms: 50) ==
               {:error, {:guardian_failed, :no_answer}}
    end
  end

  test "one that answers nothing any more is ended" do
    # It says nothing after its welcome.
    {:ok, server} = BadGuardian.start_server([[:welcome]], watch_ms: 20)
    os_pid = guardian(server)
    monitor = Process.monitor(server)

    log =
      capture_log(fn ->
        caller = Task.async(fn -> GenServer.call(server, :info) end)
        assert {:error, %Error{reason: :guardian_down}} = Task.await(caller, 10_000)
        assert_receive {:DOWN, ^monitor, :process, ^server, :guardian_down}, 10_000
      end)

    assert log =~ "(OS pid #{os_pid}) has not answered for 300 ms"
    refute ProcScan.running?(os_pid)
  end

  test "one that has nothing to do is not asked" do
    {:ok, server} = BadGuardian.start_server([[:welcome]], watch_ms: 1)
    os_pid = guardian(server)
    # Many times what it takes to give one up.
    refute eventually?(fn -> not ProcScan.running?(os_pid) end, 300)
    Process.exit(server, :kill)
  end

  describe "what the guardian says" do
    test "of children that nobody knows is ignored" do
      unknown = [
        {"ForkFailed", [11]},
        {"Started", [9]},
        {"Failed", [9, "Execute", 2]},
        {"TreeGone", [9, 0, []]},
        {"Tail", [9, {:bytes, ""}]}
      ]

      server = start([[:welcome], unknown ++ [@info], [@all_gone]])
      assert info(server) == @nobody
      assert GenServer.stop(server) == :ok
    end

    test "goes to the log" do
      server =
        start([
          [:welcome],
          [{"Log", ["warn", "a warning"]}, {"Refused", ["a reason"]}, @info],
          [@all_gone]
        ])

      log = capture_log(fn -> info(server) end)
      assert log =~ "Snakepit's guardian: a warning"
      assert log =~ "does not understand this BEAM: a reason"
      assert GenServer.stop(server) == :ok
    end

    test "that makes no sense ends the server, and its guardian" do
      server = start([[:welcome], ["nonsense"], ["nonsense", @all_gone]])
      guardian = GenServer.call(server, :os_pid)
      monitor = Process.monitor(server)
      catch_exit(info(server))
      assert_receive {:DOWN, ^monitor, :process, _server, :guardian_malformed}
      refute ProcScan.running?(guardian)
    end
  end

  describe "a child" do
    test "that cannot be forked is an error, and not the next one's" do
      server = start([[:welcome], [{"ForkFailed", [11]}], [@ready], [], [@all_gone]])

      assert GenServer.call(server, spawn_request()) ==
               {:error, %Error{operation: :spawn, reason: :eagain, step: :fork}}

      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      assert GenServer.stop(server) == :ok
    end

    test "is recorded before anybody has it" do
      run = own_run()
      server = start([[:welcome], [@ready], [], [@all_gone]], run: run)
      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      {entries, 0} = Journal.read(run.directory)
      assert {:children, ["identity"], []} in entries
      assert GenServer.stop(server) == :ok
    end

    test "that cannot be recorded is nobody's until it can" do
      directory = Beam.temporary_directory()
      path = Path.join(directory, "journal")
      {:ok, journal} = Native.journal_open(path, 100)
      run = %{own_run() | directory: directory, journal: journal}
      :ok = Journal.append(journal, {:gone, String.duplicate("x", 60)})
      server = start([[:welcome, @ready], [], [], [], [@all_gone]], run: run)

      assert {:error, %Error{operation: :spawn, reason: :efbig}} =
               GenServer.call(server, spawn_request())

      {:ok, {}} = Native.journal_rotate(journal, path <> ".old")
      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      {entries, 0} = Journal.read(directory)
      assert {:children, ["identity"], []} in entries
      assert GenServer.stop(server) == :ok
    end

    test "that ends before anybody has it is not given away" do
      gone = {"Failed", [7, "Fork", 3]}

      server =
        start([
          [:welcome, @ready],
          [gone, @info],
          [{"Ready", [8, 1, {:bytes, "8"}]}],
          [],
          [@all_gone]
        ])

      assert info(server) == @nobody
      assert {:ok, %{id: 8}} = GenServer.call(server, spawn_request())
      assert GenServer.stop(server) == :ok
    end

    test "that fails before its release says so when it is released" do
      server =
        start([[:welcome], [@ready], [{"Failed", [7, "Execute", 2]}], [@info], [@all_gone]])

      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      assert info(server) == @nobody

      assert GenServer.call(server, {:release, 7}) ==
               {:error, %Error{operation: :spawn, reason: :enoent, step: :execve}}

      assert {:error, %Error{reason: :esrch}} = GenServer.call(server, {:release, 7})
      assert GenServer.stop(server) == :ok
    end

    test "is not kept for a caller that has died waiting" do
      server = start([[:welcome], [], [@ready], [], [@all_gone]])
      caller = spawn(fn -> GenServer.call(server, spawn_request()) end)
      eventually(fn -> waits?(server, caller) end)
      Process.exit(caller, :kill)
      eventually(fn -> not waits?(server, caller) end)
      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      assert GenServer.stop(server) == :ok
    end

    test "that is gone before a request arrives leaves nobody waiting" do
      for {request, operation} <- [{{:release, 7}, :release}, {{:tail, 7}, :output_tail}] do
        server = start([[:welcome], [@ready], [], [{"TreeGone", [7, 0, []]}], [@all_gone]])
        assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())

        assert GenServer.call(server, request) ==
                 {:error, %Error{operation: operation, reason: :esrch}}

        assert GenServer.stop(server) == :ok
      end
    end

    test "that fails while it is stopped is stopped when it is gone" do
      failed = {"Failed", [7, "Execute", 2]}
      gone = {"TreeGone", [7, 0, []]}
      server = start([[:welcome], [@ready], [], [], [failed], [gone, @info], [@all_gone]])
      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())
      # Requests of one process arrive in their order.
      release = :gen_server.send_request(server, {:release, 7})
      stop = :gen_server.send_request(server, {:stop, 7, :sigterm, 0})
      failure = %Error{operation: :spawn, reason: :enoent, step: :execve}
      failed = {:failed, %{id: 7, os_pid: 1, identity: "identity"}, failure}
      assert :gen_server.receive_response(release, 10_000) == {:reply, failed}
      assert :gen_server.wait_response(stop, 0) == :timeout
      assert info(server) == @nobody
      assert :gen_server.receive_response(stop, 10_000) == {:reply, :ok}
      assert GenServer.stop(server) == :ok
    end

    test "whose tree survives is an error with the survivors" do
      server =
        start([
          [:welcome],
          [@ready],
          [],
          [{"TreeGone", [7, 2, [70, 71]]}],
          [{"AllGone", [0, 1, [72]]}],
          [@all_gone]
        ])

      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())

      assert GenServer.call(server, {:stop, 7, :sigterm, 0}) ==
               {:error, %Error{operation: :stop, reason: :survivors, os_pids: [70, 71]}}

      assert GenServer.call(server, {:stop_all, 0, false}) ==
               {:error, %Error{operation: :stop_all, reason: :survivors, os_pids: [72]}}

      assert GenServer.stop(server) == :ok
    end
  end

  describe "a tree of which something survives" do
    # As of a leader that the kernel does not let anybody end: it has not exited.
    @survivors {"TreeGone", [7, 0, [70, 71]]}

    test "is told to its owner, and to those who wait for its end" do
      server = start([[:welcome], [@ready], [], [@survivors], [@all_gone]])
      assert {:ok, %{id: 7}} = GenServer.call(server, spawn_request())

      assert GenServer.call(server, {:stop, 7, :sigterm, 0}) ==
               {:error, %Error{operation: :stop, reason: :survivors, os_pids: [70, 71]}}

      assert_received {Guardian, 7, {:survivors, [70, 71]}}
      assert GenServer.call(server, {:stop, 7, :sigterm, 0}) == :ok
      assert GenServer.stop(server) == :ok
    end

    # A guardian whose child is a process of the test's own. It says this when the child is stopped, or
    # with the news that it runs.
    defp with_child(when_started, when_stopped) do
      os_pid = Program.sleeper()
      {:ok, %{identity: identity}} = Snakepit.OSProcess.lookup(os_pid)
      ready = {"Ready", [7, os_pid, {:bytes, identity}]}
      started = [{"Started", [7]} | when_started]

      BadGuardian.replace([[:welcome, ready], started, when_stopped, [@all_gone], [@all_gone]])
      # Before it is recorded, the server would ask for another.
      eventually(fn -> not :queue.is_empty(:sys.get_state(Guardian).ready) end)
      os_pid
    end

    test "ends its worker, which names them, and its entry stays until the process is gone" do
      os_pid = with_child([], [@survivors])
      {:ok, worker} = Worker.start_link(id: "stuck", cmd: ["sleep", "600"])
      # It would notice that the owner is gone, and end the process.
      :ok = :sys.suspend(ProcessRegistry)
      Process.unlink(worker)
      stop = Task.async(fn -> Worker.stop(worker) end)
      survivors = {:error, %Error{operation: :stop, reason: :survivors, os_pids: [70, 71]}}
      assert Task.await(stop, 20_000) == survivors
      assert ProcessRegistry.worker_registered?("stuck")
      assert ProcScan.running?(os_pid)
      :ok = :sys.resume(ProcessRegistry)
      eventually(fn -> not ProcessRegistry.worker_registered?("stuck") end)
      refute ProcScan.running?(os_pid)
    end

    test "is the reason of a worker that did not ask for its end" do
      Process.flag(:trap_exit, true)
      _os_pid = with_child([@survivors], [@all_gone])
      {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"])
      assert_receive {:EXIT, ^worker, {:survivors, [70, 71]}}, 5_000
    end
  end

  describe "the death of the guardian" do
    test "is told to all who wait" do
      run = own_run()
      server = start([[:welcome], [], [:end]], run: run)
      stray = start_stray(run)
      caller = Task.async(fn -> GenServer.call(server, spawn_request()) end)
      eventually(fn -> waits?(server, caller.pid) end)
      assert info(server) == {:error, %Error{operation: :info, reason: :guardian_down}}

      assert Task.await(caller) ==
               {:error, %Error{operation: :spawn, reason: :guardian_down}}

      eventually(fn -> not Process.alive?(server) end)
      refute ProcScan.running?(stray)
    end

    test "shows in a write, too" do
      run = own_run()
      server = start([[:deaf, :welcome]], run: run)
      stray = start_stray(run)
      monitor = Process.monitor(server)
      log = capture_log(fn -> assert {:error, %Error{reason: :guardian_down}} = info(server) end)
      assert_receive {:DOWN, ^monitor, :process, _server, :guardian_down}, 10_000
      assert log =~ "guardian is gone (:epipe)"
      refute ProcScan.running?(stray)
    end

    test "unnoticed before a stop leaves the sweep to the stop" do
      run = own_run()
      server = start([[:welcome]], run: run)
      stray = start_stray(run)
      port = port(server)
      :ok = :sys.suspend(server)
      {_output, 0} = System.cmd("kill", ["-KILL", "#{guardian(server)}"])
      eventually(fn -> Port.info(port) == nil end)
      monitor = Process.monitor(server)
      :ok = :sys.terminate(server, :shutdown)
      assert_receive {:DOWN, ^monitor, :process, _server, :shutdown}, 10_000
      refute ProcScan.running?(stray)
    end

    test "during a stop leaves the sweep to the stop" do
      for says <- [[[:welcome], [:end]], [[:deaf, :welcome]]] do
        run = own_run()
        server = start(says, run: run)
        stray = start_stray(run)
        assert GenServer.stop(server, :shutdown) == :ok
        refute ProcScan.running?(stray)
      end
    end
  end

  describe "a stop" do
    test "names in the log who survives it" do
      server = start([[:welcome], [{"AllGone", [0, 0, [72]]}]])
      log = capture_log(fn -> GenServer.stop(server) end)
      assert log =~ "survived the stop of the application: [72]"
    end

    test "does not wait for ever for a guardian that says nothing" do
      # Not this run, which others use.
      run = own_run()
      {:ok, markers} = Native.marker_environment(run.id, "left", run.instance)

      env =
        for {name, value} <- markers, do: {String.to_charlist(name), String.to_charlist(value)}

      sleep = System.find_executable("sleep")
      left = Port.open({:spawn_executable, sleep}, args: ["600"], env: env)
      {:os_pid, os_pid} = Port.info(left, :os_pid)
      mute = Port.open({:spawn_executable, sleep}, [:exit_status, args: ["600"]])

      log = capture_log(fn -> assert Shutdown.await_all_gone(mute, run, 50) == :ok end)
      assert log =~ "does not answer"
      refute ProcScan.running?(os_pid)
      {:os_pid, mute_pid} = Port.info(mute, :os_pid)
      System.cmd("kill", ["#{mute_pid}"])
    end

    test "is given the time that the longest grace period of a child takes" do
      assert Guardian.child_spec([]).shutdown == :infinity
      run = Run.current!()
      before = Grace.longest(run)
      command = Command.new!(cmd: ["sleep", "600"], stop_timeout: before + 1_234)
      {:ok, child} = Guardian.spawn(command)
      # Answered after the spawn has been passed on.
      {:ok, _info} = Guardian.info()
      assert Grace.longest(run) == before + 1_234
      assert {:grace, before + 1_234} in elem(Journal.read(run.directory), 0)
      assert Guardian.stop(child) == :ok
      assert Grace.longest(run) == before + 1_234
    end

    test "comes with the end of a process that the server is linked to" do
      server = start([[:welcome], [@all_gone]])
      monitor = Process.monitor(server)

      spawn(fn ->
        Process.link(server)
        exit(:linked)
      end)

      assert_receive {:DOWN, ^monitor, :process, _server, :linked}, 10_000
    end
  end

  test "a guardian that is gone is told nothing, and nobody waits for it" do
    port = Port.open({:spawn_executable, System.find_executable("cat")}, [:binary])
    Port.close(port)
    refute Wire.command(port, :ping)
    refute Wire.try_command(port, :ping)
  end

  test "a sweep that leaves something is told" do
    assert Shutdown.log_sweep({:ok, %{survivors: []}}) == :ok
    survivors = {:ok, %{survivors: [{72, "identity"}]}}
    assert capture_log(fn -> Shutdown.log_sweep(survivors) end) =~ "still there after the sweep"

    assert capture_log(fn -> Shutdown.log_sweep({:error, {:eacces, nil}}) end) =~
             "the sweep failed"
  end

  test "without a guardian nobody can connect" do
    assert {:ok, socket, <<_::16-bytes>>} = Guardian.connect()
    :gen_tcp.close(socket)

    without_supervisor(fn ->
      server = Process.whereis(Guardian)
      System.cmd("kill", ["-KILL", "#{Guardian.os_pid()}"])
      eventually(fn -> not Process.alive?(server) end)
      error = {:error, %Error{operation: :connect, reason: :guardian_down}}
      assert Guardian.connect() == error
      assert Guardian.connect_socket() == error
    end)
  end

  test "the output of a child that is gone is an error" do
    {:ok, child} = Guardian.spawn(Command.new!(cmd: ["true"]))
    :ok = Guardian.stop(child)

    assert Guardian.output_tail(child) ==
             {:error, %Error{operation: :output_tail, reason: :esrch}}
  end
end
