defmodule Snakepit.HeartbeatMonitorTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.HeartbeatMonitor
  alias Snakepit.HeartbeatMonitor.{Health, Poller}
  alias Snakepit.Test.Beam

  @python System.find_executable("python3")

  defp start(arguments, heartbeat, opts \\ []) do
    cmd = [@python, fixture("lifeline.py") | Enum.map(arguments, &to_string/1)]
    {:ok, worker} = Worker.start_link([cmd: cmd, heartbeat: heartbeat, ready: :heartbeat] ++ opts)
    worker
  end

  defp health(worker), do: Worker.info!(worker).heartbeat
  defp now, do: System.monotonic_time(:millisecond)

  test "pings go out and pongs come back, at the interval" do
    # Order: before the first ping. How many there are when the start returns depends on the machine.
    begun = now()
    worker = start([], ping_interval: 50)
    eventually(fn -> health(worker).pongs_received >= 10 end)
    assert now() - begun >= 400
    assert %Health{status: :healthy, missed_heartbeats: 0, last_latency_ms: ms} = health(worker)
    assert ms < 1_000
    assert (health(worker).pings_sent - health(worker).pongs_received) in [0, 1]
  end

  test "a process with another clock answers as well, and its latency is measured" do
    worker = start(["clock", 3_600_000], ping_interval: 50)
    eventually(fn -> health(worker).pongs_received >= 5 end)
    assert %{status: :healthy, missed_heartbeats: 0, last_latency_ms: ms} = health(worker)
    assert ms in 0..1_000
  end

  test "a process that takes its time says so" do
    worker = start(["slow", 20], ping_interval: 100)
    eventually(fn -> health(worker).pongs_received >= 3 end)
    assert health(worker).last_latency_ms in 20..1_000
  end

  test "the death of the poller costs no process its life" do
    heartbeat = [ping_interval: 50, timeout_threshold: 1_000, max_missed_heartbeats: 2]
    worker = start([], heartbeat)
    os_pid = Worker.os_pid!(worker)

    for _ <- 1..3 do
      before = health(worker).pongs_received
      kill_poller()
      eventually(fn -> health(worker).pongs_received > before + 3 end)
    end

    assert %{status: :healthy, missed_heartbeats: 0} = health(worker)
    assert Worker.os_pid!(worker) == os_pid

    # The next one looks after it without being asked.
    down = Process.monitor(worker)
    kill_poller()
    kill(os_pid, "STOP")
    assert_receive {:DOWN, ^down, :process, ^worker, :heartbeat_timeout}, 10_000
  end

  defp kill_poller do
    poller = Process.whereis(Poller)
    down = Process.monitor(poller)
    Process.exit(poller, :kill)
    assert_receive {:DOWN, ^down, :process, ^poller, :killed}, 5_000
  end

  test "one that stops answering is found" do
    heartbeat = [ping_interval: 50, timeout_threshold: 200, max_missed_heartbeats: 2]
    worker = start(["stuck", 10], heartbeat)
    assert await_down(worker) == :heartbeat_timeout
  end

  test "one that is slower than the interval is healthy" do
    heartbeat = [ping_interval: 20, timeout_threshold: 3_000, max_missed_heartbeats: 1]
    worker = start(["slow", 40], heartbeat)
    eventually(fn -> health(worker).pongs_received >= 20 end, 10_000)
    assert %{status: :healthy, missed_heartbeats: 0} = health(worker)
  end

  # How soon is a figure of script/bench.
  test "a process that is stopped is found, not before it has missed enough, and its tree is gone" do
    {threshold, misses, interval} = {200, 3, 100}

    worker =
      start([],
        ping_interval: interval,
        timeout_threshold: threshold,
        max_missed_heartbeats: misses
      )

    os_pid = Worker.os_pid!(worker)
    begun = now()
    down = Process.monitor(worker)
    kill(os_pid, "STOP")
    assert_receive {:DOWN, ^down, :process, ^worker, :heartbeat_timeout}, 20_000
    assert now() - begun >= threshold * misses - interval
    refute ProcScan.running?(os_pid)
  end

  test "a heartbeat thread that died is found, and the supervisor starts the worker anew" do
    heartbeat = [ping_interval: 20, timeout_threshold: 100, max_missed_heartbeats: 2]
    cmd = [@python, fixture("lifeline.py"), "stuck", "3"]
    child = {Worker, id: "stuck", cmd: cmd, heartbeat: heartbeat, ready: :heartbeat}
    {:ok, supervisor} = Supervisor.start_link([child], strategy: :one_for_one, max_restarts: 100)
    {:ok, %{os_pid: first}} = ProcessRegistry.get_worker_info("stuck")

    eventually(fn ->
      match?(
        {:ok, %{os_pid: os_pid}} when os_pid not in [nil, first],
        ProcessRegistry.get_worker_info("stuck")
      )
    end)

    eventually(fn -> not ProcScan.running?(first) end)
    :ok = Supervisor.stop(supervisor)
  end

  test "an endless loop that holds the interpreter is found" do
    heartbeat = [ping_interval: 50, timeout_threshold: 200, max_missed_heartbeats: 2]
    worker = start(["loop", 300], heartbeat)
    assert await_down(worker) == :heartbeat_timeout
  end

  test "one that is merely slow is left alone: any pong resets the count" do
    # Each answer takes longer than a threshold, so each ping is a miss, but no three in a row.
    worker =
      start(["slow", 150], ping_interval: 50, timeout_threshold: 100, max_missed_heartbeats: 3)

    eventually(fn -> health(worker).pongs_received >= 8 end, 10_000)
    assert Process.alive?(worker)
  end

  test "one ping is in flight at most, however long it takes" do
    worker = start(["slow", 100], ping_interval: 10, timeout_threshold: 5_000)
    # And the next follows at once, not at the end of the threshold.
    eventually(fn -> health(worker).pongs_received >= 6 end, 5_000)
    assert health(worker).pings_sent <= health(worker).pongs_received + 1
  end

  test "garbage and floods on the lifeline do no harm" do
    worker = start(["chatty"], ping_interval: 20)
    eventually(fn -> health(worker).pongs_received >= 50 end, 10_000)
    assert health(worker).status == :healthy
  end

  test "no pong at all: not ready in time, or missed if nobody waits for it" do
    heartbeat = [ping_interval: 20, timeout_threshold: 50, max_missed_heartbeats: 2]
    cmd = [@python, fixture("lifeline.py"), "deaf"]

    # Who waits for the first pong says how long that may take.
    assert {:error, %Error{reason: :not_ready}} =
             Worker.start_link(
               cmd: cmd,
               heartbeat: heartbeat,
               ready: :heartbeat,
               ready_timeout: 200
             )

    {:ok, worker} = Worker.start_link(cmd: cmd, heartbeat: heartbeat)
    assert await_down(worker) == :heartbeat_timeout
  end

  test "a process that starts slowly but is awaited is not missed" do
    worker =
      start(["late", 400], ping_interval: 20, timeout_threshold: 50, max_missed_heartbeats: 1)

    assert health(worker).pongs_received >= 1
  end

  describe "a :ping function" do
    test "takes the place of the lifeline" do
      test = self()

      ping = fn info ->
        send(test, {:pinged, info.os_pid})
        {:ok, :serving}
      end

      {:ok, worker} =
        Worker.start_link(
          cmd: ["sleep", "600"],
          ping: ping,
          heartbeat: [ping_interval: 20],
          ready: :heartbeat
        )

      os_pid = Worker.os_pid!(worker)
      for _ <- 1..5, do: assert_receive({:pinged, ^os_pid}, 1_000)
      refute Enum.any?(environment(os_pid), &String.starts_with?(&1, "SNAKEPIT_LIFELINE_FD"))
    end

    test "that says no, raises or hangs is a miss, one that says yes again in time is none" do
      heartbeat = [ping_interval: 20, timeout_threshold: 150, max_missed_heartbeats: 2]

      for ping <- [
            fn -> :no end,
            fn -> raise "no" end,
            fn -> exit(:no) end,
            fn -> Process.sleep(:infinity) end
          ] do
        {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"], ping: ping, heartbeat: heartbeat)
        assert await_down(worker) == :heartbeat_timeout
      end

      flaky = :counters.new(1, [])

      ping = fn ->
        :counters.add(flaky, 1, 1)
        rem(:counters.get(flaky, 1), 3) == 0
      end

      {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"], ping: ping, heartbeat: heartbeat)
      eventually(fn -> health(worker).pongs_received >= 5 end)
      assert health(worker).missed_heartbeats == 0
    end

    test "one call at a time, in one process" do
      test = self()

      ping = fn ->
        send(test, {:from, self()})
        true
      end

      {:ok, _worker} =
        Worker.start_link(cmd: ["sleep", "600"], ping: ping, heartbeat: [ping_interval: 10])

      pids = for _ <- 1..20, do: receive(do: ({:from, pid} -> pid), after: (1_000 -> :none))
      assert [pid] = Enum.uniq(pids)
      assert is_pid(pid)
    end
  end

  @tag :long
  test "a pause of the BEAM is not held against the workers" do
    beam = Beam.start()
    heartbeat = [ping_interval: 50, timeout_threshold: 200, max_missed_heartbeats: 1]
    opts = [cmd: [@python, fixture("lifeline.py")], heartbeat: heartbeat, ready: :heartbeat]

    Beam.run(
      beam,
      "Process.flag(:trap_exit, true); {:ok, w} = Snakepit.Worker.start_link(#{inspect(opts)}); Process.register(w, :w); :ok"
    )

    os_pid = Beam.run(beam, "Snakepit.Worker.os_pid!(:w)")

    for _ <- 1..5 do
      Beam.kill(beam, "STOP")
      # Much longer than a threshold. Nothing else is waited for: the pause is what is tested.
      receive(do: (:never -> :ok), after: (600 -> :ok))
      Beam.kill(beam, "CONT")
      pongs = Beam.run(beam, "Snakepit.Worker.info!(:w).heartbeat.pongs_received")

      eventually(fn ->
        Beam.run(beam, "Snakepit.Worker.info!(:w).heartbeat.pongs_received") > pongs + 2
      end)

      assert Beam.run(beam, "Snakepit.Worker.os_pid!(:w)") == os_pid
    end
  end

  @tag :long
  test "a pause of the whole machine is held against nobody" do
    beam = Beam.start()
    heartbeat = [ping_interval: 50, timeout_threshold: 3_000, max_missed_heartbeats: 1]
    opts = [cmd: [@python, fixture("lifeline.py")], heartbeat: heartbeat, ready: :heartbeat]

    Beam.run(
      beam,
      "Process.flag(:trap_exit, true); {:ok, w} = Snakepit.Worker.start_link(#{inspect(opts)}); Process.register(w, :w); :ok"
    )

    os_pid = Beam.run(beam, "Snakepit.Worker.os_pid!(:w)")
    waits = "(h = Snakepit.Worker.info!(:w).heartbeat; h.pings_sent > h.pongs_received)"

    kill(os_pid, "STOP")
    eventually(fn -> Beam.run(beam, waits) end)
    # The pong of the ping in flight is overdue when the BEAM goes on, and has not been sent.
    Beam.kill(beam, "STOP")
    receive(do: (:never -> :ok), after: (3_500 -> :ok))
    Beam.kill(beam, "CONT")
    assert Beam.run(beam, "is_pid(Process.whereis(:w))")
    kill(os_pid, "CONT")
    eventually(fn -> not Beam.run(beam, waits) end)
    assert Beam.run(beam, "Snakepit.Worker.os_pid!(:w)") == os_pid
  end

  test "beside a worker of one's own: it gets an exit signal in the end" do
    worker = spawn(fn -> receive(do: (:never -> :ok)) end)
    down = Process.monitor(worker)

    {:ok, _monitor} =
      HeartbeatMonitor.start_link(
        worker: worker,
        worker_id: "own",
        ping: fn -> false end,
        ping_interval: 10,
        timeout_threshold: 30,
        max_missed_heartbeats: 2
      )

    assert_receive {:DOWN, ^down, :process, ^worker, :heartbeat_timeout}, 10_000

    for opts <- [[], [worker: self()], [worker: self(), ping: fn -> true end, ping_interval: 0]] do
      assert_raise ArgumentError, fn -> HeartbeatMonitor.start_link(opts) end
    end
  end

  defp environment(os_pid), do: "/proc/#{os_pid}/environ" |> File.read!() |> String.split(<<0>>)
end
