defmodule Snakepit.PoolTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Pool
  alias Snakepit.Test.Family

  @python System.find_executable("python3")

  defp squares(opts \\ []) do
    Keyword.merge([cmd: [@python, fixture("squares.py")], stdio: :pipe, packet: :line], opts)
  end

  defp square(worker, number), do: Worker.request(worker, "#{number}\n", 30_000)

  defp start(opts) do
    {:ok, pool} = Pool.start_link(opts)
    pool
  end

  test "start_link returns when every process runs; they are used one at a time and by turns" do
    pool = start(size: 3, worker: squares())
    workers = Pool.list_workers(pool)
    assert length(workers) == 3
    assert Enum.all?(workers, &ProcScan.running?(&1.os_pid))
    assert workers |> Enum.map(& &1.id) |> Enum.uniq() |> length() == 3
    assert Pool.await_ready(pool) == :ok
    assert {:ok, "49\n"} = Pool.with_worker(pool, &square(&1, 7))
    used = for _ <- 1..6, do: Pool.with_worker(pool, & &1)
    assert used |> Enum.frequencies() |> Map.values() == [2, 2, 2]
    assert %{size: 3, idle: 3, busy: 0, queued: 0, last_error: nil} = Pool.info(pool)
    :ok = GenServer.stop(pool)
    refute Enum.any?(workers, &ProcScan.running?(&1.os_pid))
    assert ProcessRegistry.list_all_workers() == []
  end

  test "one that is slow to get ready does not hold up the others" do
    last = :atomics.new(1, [])

    ready = fn ->
      # The first of them is never ready.
      unless Process.get(:number), do: Process.put(:number, :atomics.add_get(last, 1, 1))

      Process.get(:number) > 1
    end

    pool = start(size: 4, worker: [cmd: ["sleep", "600"], ready: ready, ready_timeout: 60_000])
    eventually(fn -> match?(%{idle: 3, starting: 1}, Pool.info(pool)) end)
    assert :used = Pool.with_worker(pool, fn _ -> :used end)
    assert {:error, %Error{reason: :timeout}} = Pool.await_ready(pool, 50)
    # Nor does it hold up the end.
    {us, :ok} = :timer.tc(fn -> GenServer.stop(pool) end)
    assert us < 30_000_000
  end

  test "callers wait in order, and time out with a reason" do
    pool = start(size: 1, worker: [cmd: ["sleep", "600"]])
    test = self()

    {:error, %Error{reason: :timeout} = error} =
      Pool.with_worker(pool, fn _worker ->
        for n <- 1..20 do
          spawn_link(fn ->
            {:turn, ^n} =
              Pool.with_worker(pool, fn _ -> send(test, {:turn, n}) end, timeout: :infinity)
          end)

          eventually(fn -> Pool.info(pool).queued == n end)
        end

        Task.async(fn -> Pool.with_worker(pool, fn _ -> :never end, timeout: 50) end)
        |> Task.await()
      end)

    assert Exception.message(error) =~ "no worker was free"
    turns = for _ <- 1..20, do: receive(do: ({:turn, n} -> n), after: (20_000 -> :none))
    assert turns == Enum.to_list(1..20)
    assert %{idle: 1, queued: 0} = Pool.info(pool)
  end

  test "a worker comes back when its caller dies, raises or throws" do
    pool = start(size: 1, worker: [cmd: ["sleep", "600"]])
    test = self()

    holder =
      spawn(fn ->
        Pool.with_worker(pool, fn worker ->
          send(test, {:held, worker})
          Process.sleep(:infinity)
        end)
      end)

    assert_receive {:held, worker}, 5_000
    assert {:error, %Error{reason: :timeout}} = Pool.with_worker(pool, & &1, timeout: 0)
    waiting = spawn(fn -> Pool.with_worker(pool, & &1, timeout: :infinity) end)
    eventually(fn -> Pool.info(pool).queued == 1 end)
    # One that gives up by dying is not served.
    Process.exit(waiting, :kill)
    eventually(fn -> Pool.info(pool).queued == 0 end)
    Process.exit(holder, :kill)
    assert Pool.with_worker(pool, & &1) == worker
    assert_raise RuntimeError, "mine", fn -> Pool.with_worker(pool, fn _ -> raise "mine" end) end
    assert catch_throw(Pool.with_worker(pool, fn _ -> throw(:mine) end)) == :mine
    assert Pool.with_worker(pool, & &1) == worker
    assert Process.info(self(), :messages) == {:messages, []}
  end

  test "a worker that ends while it is used is replaced, and its caller told" do
    # The next caller, who comes at once, does not get the one that is about to end.
    # A shell, which starts sooner than Python.
    squares = sh("while read number; do echo $((number * number)); done")

    [pool | _] =
      for _ <- 1..10 do
        pool = start(size: 1, worker: squares(cmd: squares))

        assert {:error, %Error{reason: :worker_down}} =
                 Pool.with_worker(pool, fn worker ->
                   kill(Worker.os_pid!(worker))
                   square(worker, 3)
                 end)

        assert {:ok, "9\n"} = Pool.with_worker(pool, &square(&1, 3), timeout: 60_000)
        pool
      end

    assert {:error, %Error{reason: :worker_down} = error} =
             Pool.with_worker(pool, fn worker ->
               end_by(worker, fn -> kill(Worker.os_pid!(worker)) end)
               Worker.os_pid!(worker)
             end)

    assert Exception.message(error) =~ "sigkill"
    assert {:ok, "9\n"} = Pool.with_worker(pool, &square(&1, 3))
    assert %{last_error: %Error{signal: :sigkill}, workers: [%{restarts: 2}]} = Pool.info(pool)
  end

  @tag :long
  test "a program that cannot start does not burn the processor, and says why" do
    # Order: before the first attempt.
    begun = System.monotonic_time(:millisecond)

    pool =
      start(
        size: 2,
        worker: [cmd: sh("echo because >&2; exit 9")],
        max_restarts: 2
      )

    eventually(fn -> match?(%{waiting: 2}, Pool.info(pool)) end)
    assert %{last_error: %Error{status: 9}, workers: [one, two]} = Pool.info(pool)
    assert %Error{reason: :exit_status, status: 9} = one.last_error
    assert two.restarts > 0

    # 0, 100, 200, 400 ms: the fifth attempt of each is at least 700 ms away from the first.
    eventually(fn -> Enum.all?(Pool.list_workers(pool), &(&1.restarts >= 5)) end)
    assert System.monotonic_time(:millisecond) - begun >= 700

    absent = start(size: 1, worker: [cmd: ["no-such-program-anywhere"]])
    assert %{workers: [%{last_error: %Error{reason: :enoent}}]} = Pool.info(absent)

    unready =
      start(
        size: 1,
        worker: [cmd: sh("echo no; sleep 600"), ready: {:output, "yes"}, ready_timeout: 100]
      )

    eventually(fn ->
      match?(%{last_error: %Error{reason: :not_ready, output: "no\n"}}, Pool.info(unready))
    end)

    assert {:error, %Error{reason: :timeout} = error} =
             Pool.with_worker(unready, & &1, timeout: 50)

    assert Exception.message(error) =~ "not ready within 100 ms"
  end

  test "it can grow and shrink, who is busy is not disturbed" do
    token = Family.token()
    pool = start(size: 2, worker: [cmd: ["sleep", token]])
    assert Pool.resize(pool, 5) == :ok
    eventually(fn -> match?(%{size: 5, idle: 5}, Pool.info(pool)) end)
    eventually(fn -> length(Family.members(token)) == 5 end)

    :mine =
      Pool.with_worker(pool, fn worker ->
        os_pid = Worker.os_pid!(worker)
        assert Pool.resize(pool, 1) == :ok
        eventually(fn -> Family.members(token) == [os_pid] end)
        assert ProcScan.running?(os_pid)
        :mine
      end)

    assert %{size: 1, idle: 1} = Pool.info(pool)
    :ok = Pool.with_worker(pool, fn _ -> Pool.resize(pool, 3) && Pool.resize(pool, 2) end)
    eventually(fn -> match?(%{size: 2, idle: 2}, Pool.info(pool)) end)
    eventually(fn -> length(Family.members(token)) == 2 end)
    assert_raise ArgumentError, fn -> Pool.resize(pool, 0) end
  end

  test "a worker can be replaced, gently or not" do
    pool = start(size: 1, worker: [cmd: ["sleep", "600"]], id: "replace")
    [%{os_pid: first, id: id}] = Pool.list_workers(pool)
    assert id == "replace-1"

    :undisturbed =
      Pool.with_worker(pool, fn worker ->
        assert Pool.restart_worker(pool, id) == :ok
        assert Worker.os_pid!(worker) == first
        :undisturbed
      end)

    second =
      eventually(fn ->
        with [%{state: :idle, os_pid: os_pid}] when os_pid != first <- Pool.list_workers(pool),
             do: os_pid,
             else: (_ -> nil)
      end)

    refute ProcScan.running?(first)

    true =
      Pool.with_worker(pool, fn worker ->
        restart = fn -> assert Pool.restart_worker(pool, worker, force: true) == :ok end
        assert end_by(worker, restart) == :shutdown
      end)

    eventually(fn ->
      match?([%{state: :idle, os_pid: os_pid}] when os_pid != second, Pool.list_workers(pool))
    end)

    assert {:error, %Error{reason: :not_found}} = Pool.restart_worker(pool, "nobody")
    assert %{last_error: nil} = Pool.info(pool)
  end

  test "killed with :kill, it takes its workers along" do
    token = Family.token()
    pool = start(size: 5, worker: [cmd: ["sleep", token]])
    eventually(fn -> length(Family.members(token)) == 5 end)
    Process.exit(pool, :kill)
    eventually(fn -> Family.members(token) == [] end)
    eventually(fn -> ProcessRegistry.list_all_workers() == [] end)
  end

  test "wrong options raise before anything starts" do
    for opts <- [
          :oops,
          [],
          [size: 0, worker: [cmd: ["sleep"]]],
          [size: 65_537, worker: [cmd: ["sleep"]]],
          [size: 2],
          [size: 2, worker: [cmd: "sleep"]],
          [size: 2, worker: [cmd: ["sleep"], id: "x"]],
          [size: 2, worker: [cmd: ["sleep"]], sise: 3],
          [size: 2, worker: [cmd: ["sleep"]], id: <<255>>],
          [size: 2, worker: [cmd: ["sleep"]], max_restarts: 0]
        ] do
      assert_raise ArgumentError, fn -> Pool.start_link(opts) end
    end
  end

  test "who passes nonsense does not take the pool down for others" do
    {:ok, pool} = Pool.start_link(size: 1, worker: squares())

    for timeout <- [-1, :soon, "5", 1.5, 0x100000000] do
      assert_raise ArgumentError, ~r/:timeout/, fn ->
        Pool.with_worker(pool, & &1, timeout: timeout)
      end

      assert_raise ArgumentError, ~r/:timeout/, fn -> Pool.await_ready(pool, timeout) end
    end

    assert Pool.await_ready(pool, :infinity) == :ok
    assert is_pid(Pool.with_worker(pool, & &1, timeout: :infinity))
  end

  test "in a supervision tree, by its name" do
    {:ok, supervisor} =
      Supervisor.start_link([{Pool, name: __MODULE__.Named, size: 2, worker: squares()}],
        strategy: :one_for_one
      )

    assert {:ok, "16\n"} = Pool.with_worker(__MODULE__.Named, &square(&1, 4))
    assert [%{id: "Snakepit.PoolTest.Named-1"}, _] = Pool.list_workers(__MODULE__.Named)
    :ok = Supervisor.stop(supervisor)
  end
end
