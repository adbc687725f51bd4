defmodule Snakepit.Worker.RecoveryTest do
  # Workers whose process is lost with the guardian.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Guardian, HeartbeatMonitor, Pool}
  alias Snakepit.Test.Program

  # Both ways of losing it. The second one can tell nobody.
  @losses [
    guardian: quote(do: kill(Guardian.os_pid())),
    server: quote(do: Process.exit(Process.whereis(Guardian), :kill))
  ]

  setup_all do: fresh_supervisor()

  # Another process than this one.
  defp await_another(worker, os_pid), do: eventually(fn -> another(worker, os_pid) end, 20_000)

  defp another(worker, os_pid) do
    now = Worker.os_pid!(worker)
    if now != os_pid, do: now
  end

  # It ends with the worker, and so is linked to it.
  defp monitor_of(worker) do
    {:links, linked} = Process.info(worker, :links)
    monitor? = &(:proc_lib.translate_initial_call(&1) == {HeartbeatMonitor.Server, :init, 1})
    assert [monitor] = Enum.filter(linked, &(is_pid(&1) and monitor?.(&1)))
    monitor
  end

  for {name, lose} <- @losses do
    test "the worker goes on with another process when it loses the #{name}" do
      bystander = Program.sleeper()
      name = :"recovers_#{unquote(name)}"
      {:ok, worker} = Worker.start_link(id: "lost", name: name, cmd: ["sleep", "600"])
      first = Worker.os_pid!(worker)

      log =
        capture_log(fn ->
          unquote(lose)
          second = await_another(worker, first)
          assert Process.whereis(name) == worker
          assert ProcScan.running?(second)
          refute ProcScan.running?(first)

          assert {:ok, %{os_pid: ^second, owner: ^worker}} =
                   ProcessRegistry.get_worker_info("lost")

          assert [%{os_pid: ^second}] = for(w <- Snakepit.workers(), w.id == "lost", do: w)
        end)

      assert [_once] = Regex.scan(~r/Snakepit worker lost has lost its OS process #{first}/, log)
      refute log =~ "Snakepit worker lost (OS process"
      os_pid = Worker.os_pid!(worker)
      assert Worker.stop(worker) == :ok
      refute ProcScan.running?(os_pid)
      assert ProcScan.running?(bystander)
    end

    test "its connections and heartbeats are made anew when it loses the #{name}" do
      {:ok, worker} =
        Worker.start_link(
          cmd: ["python3", fixture("squares.py")],
          stdio: :pipe,
          packet: :line,
          heartbeat: [ping_interval: 50],
          ping: fn -> true end
        )

      assert Worker.request(worker, "3\n") == {:ok, "9\n"}
      first = Worker.os_pid!(worker)
      monitor = monitor_of(worker)
      unquote(lose)
      await_another(worker, first)
      assert Worker.request(worker, "4\n") == {:ok, "16\n"}
      refute Process.alive?(monitor)
      assert monitor_of(worker) != monitor
      eventually(fn -> Worker.info!(worker).heartbeat.status == :healthy end)
      assert Worker.stop(worker) == :ok
    end
  end

  test "heartbeats over a lifeline go on" do
    lifeline = ["python3", fixture("lifeline.py")]

    {:ok, worker} =
      Worker.start_link(cmd: lifeline, heartbeat: [ping_interval: 50], ready: :heartbeat)

    first = Worker.os_pid!(worker)
    kill(Guardian.os_pid())
    await_another(worker, first)
    # It has been ready again, so there was a pong.
    assert Worker.info!(worker).heartbeat.status == :healthy
    assert Worker.stop(worker) == :ok
  end

  test "who waits for an answer of the process that was lost gets an error" do
    path = temporary_path("asked")
    script = "read a; : > '#{path}'; exec sleep 600"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, packet: :line)
    first = Worker.os_pid!(worker)
    request = Task.async(fn -> Worker.request(worker, "x\n", 20_000) end)
    eventually(fn -> File.exists?(path) end)
    # More than the kernel takes from a process that does not read.
    write = Task.async(fn -> Worker.write(worker, :binary.copy("x", 10_000_000)) end)
    eventually(fn -> Insides.pending_writes(worker) == 1 end)
    kill(Guardian.os_pid())
    assert {:error, %Error{reason: :worker_down}} = Task.await(request, 20_000)
    assert {:error, %Error{operation: :write}} = Task.await(write, 20_000)
    await_another(worker, first)
    assert Worker.stop(worker) == :ok
  end

  test "who waits for output of the process that was lost is told its end, and then reads the next one's" do
    {:ok, worker} = Worker.start_link(cmd: sh("echo here; exec cat"), stdio: :pipe, output: :read)
    first = Worker.os_pid!(worker)
    assert Worker.read(worker, :line) == {:ok, "here\n"}
    readers = for _ <- 1..3, do: Task.async(fn -> Worker.read(worker, :any, 20_000) end)
    eventually(fn -> Insides.waiting_readers(worker) == 3 end)
    kill(Guardian.os_pid())
    assert Task.await_many(readers, 20_000) == [:eof, :eof, :eof]
    await_another(worker, first)
    assert Worker.read(worker, :line, 20_000) == {:ok, "here\n"}
    assert Worker.write(worker, "there\n") == :ok
    assert Worker.read(worker, :line, 20_000) == {:ok, "there\n"}
    assert Worker.stop(worker) == :ok
  end

  test "it is awaited until it is ready again" do
    path = temporary_path("ready")
    File.write!(path, "")
    ready = fn -> File.exists?(path) end
    {:ok, worker} = Worker.start_link(id: "readied", cmd: ["sleep", "600"], ready: ready)
    first = Worker.os_pid!(worker)
    File.rm!(path)
    kill(Guardian.os_pid())
    # It runs, and is not ready.
    eventually(
      fn ->
        with {:ok, %{os_pid: os_pid}} <- registered("readied"),
             do: os_pid not in [nil, first] and ProcScan.running?(os_pid),
             else: (_gone -> false)
      end,
      10_000
    )

    asking = Task.async(fn -> another(worker, first) end)
    assert Task.yield(asking, 100) == nil
    File.write!(path, "")
    assert Task.await(asking, 20_000) != nil
    assert Worker.stop(worker) == :ok
  end

  # Its table goes and comes back with the guardian.
  defp registered(id) do
    ProcessRegistry.get_worker_info(id)
  rescue
    ArgumentError -> :down
  end

  test "one that is not ready yet starts again too" do
    path = temporary_path("ready")
    ready = fn -> File.exists?(path) end

    start =
      Task.async(fn ->
        Process.flag(:trap_exit, true)
        {:ok, worker} = Worker.start_link(id: "early", cmd: ["sleep", "600"], ready: ready)
        {Worker.os_pid!(worker), Worker.stop(worker)}
      end)

    first =
      eventually(fn ->
        with {:ok, %{os_pid: os_pid}} <- registered("early"), do: os_pid, else: (_ -> nil)
      end)

    kill(Guardian.os_pid())
    eventually(fn -> not ProcScan.running?(first) end)
    File.write!(path, "")
    assert {second, :ok} = Task.await(start, 20_000)
    assert second != first
  end

  test "one that cannot be started again exits with the reason" do
    path = temporary_path("program")
    File.cp!(System.find_executable("sleep"), path)
    {:ok, worker} = Worker.start_link(cmd: [path, "600"])
    File.rm!(path)
    kill(Guardian.os_pid())
    assert %Error{reason: :enoent} = await_down(worker, 20_000)
  end

  test "with on_guardian_down: :exit its supervisor starts the worker again" do
    options = [id: "orphaned", cmd: ["sleep", "600"], on_guardian_down: :exit]
    {:ok, supervisor} = Supervisor.start_link([{Worker, options}], strategy: :one_for_one)
    [{_, worker, _, _}] = Supervisor.which_children(supervisor)
    first = Worker.os_pid!(worker)
    monitor = Process.monitor(worker)
    kill(Guardian.os_pid())
    assert_receive {:DOWN, ^monitor, :process, _, :guardian_down}, 10_000
    refute ProcScan.running?(first)

    second =
      eventually(
        fn ->
          with [{_, pid, _, _}] when is_pid(pid) <- Supervisor.which_children(supervisor),
               do: Worker.os_pid!(pid),
               else: (_ -> nil)
        end,
        15_000
      )

    assert second != first and ProcScan.running?(second)
    :ok = Supervisor.stop(supervisor)
    refute ProcScan.running?(second)
  end

  test "a supervisor of ten workers, and Snakepit's own, outlive it" do
    children = for n <- 1..10, do: {Worker, id: "ten-#{n}", cmd: ["sleep", "600"]}
    {:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

    {:ok, guest} =
      DynamicSupervisor.start_child(
        Snakepit.WorkerSupervisor,
        {Worker, id: "guest", cmd: ["sleep", "600"]}
      )

    workers = [guest | for({_, pid, _, _} <- Supervisor.which_children(supervisor), do: pid)]

    for _ <- 1..2 do
      before = for worker <- workers, do: {worker, Worker.os_pid!(worker)}
      kill(Guardian.os_pid())
      for {worker, os_pid} <- before, do: assert(ProcScan.running?(await_another(worker, os_pid)))
    end

    assert Enum.sort(for({_, pid, _, _} <- Supervisor.which_children(supervisor), do: pid)) ==
             Enum.sort(tl(workers))

    assert Enum.all?(workers, &Process.alive?/1)
    :ok = DynamicSupervisor.terminate_child(Snakepit.WorkerSupervisor, guest)
    :ok = Supervisor.stop(supervisor)
  end

  test "a pool keeps its workers, and gives none of them away until it is ready" do
    path = temporary_path("ready")
    File.write!(path, "")

    {:ok, pool} =
      Pool.start_link(
        size: 3,
        id: "kept",
        worker: [
          cmd: ["python3", fixture("squares.py")],
          stdio: :pipe,
          packet: :line,
          ready: fn -> File.exists?(path) end
        ]
      )

    :ok = Pool.await_ready(pool)
    before = for worker <- Pool.list_workers(pool), do: {worker.id, worker.pid}
    square = &Worker.request(&1, "5\n", 20_000)
    gate = self()

    # One that somebody has when it happens.
    user =
      Task.async(fn ->
        Pool.with_worker(pool, fn worker ->
          send(gate, {:has, worker})
          receive(do: (:go -> :ok))
          square.(worker)
        end)
      end)

    assert_receive {:has, _worker}, 5_000
    File.rm!(path)
    kill(Guardian.os_pid())
    eventually(fn -> Pool.info(pool).starting == 2 end, 10_000)
    assert {:error, %Error{reason: :timeout}} = Pool.with_worker(pool, square, timeout: 100)
    File.write!(path, "")
    send(user.pid, :go)
    assert {:ok, "25\n"} = Task.await(user, 20_000)
    assert :ok = Pool.await_ready(pool)
    eventually(fn -> Pool.info(pool).idle == 3 end)
    tasks = for _ <- 1..6, do: Task.async(fn -> Pool.with_worker(pool, square) end)
    assert Task.await_many(tasks, 20_000) == List.duplicate({:ok, "25\n"}, 6)
    workers = Pool.list_workers(pool)
    assert for(worker <- workers, do: {worker.id, worker.pid}) == before
    assert Enum.all?(workers, &(&1.restarts == 0))
    GenServer.stop(pool)
  end
end
