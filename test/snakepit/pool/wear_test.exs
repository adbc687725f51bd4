defmodule Snakepit.Pool.WearTest do
  # What `Snakepit.Pool.RosterTest` shows of decisions, with processes.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Pool
  alias Snakepit.Test.Family

  @python System.find_executable("python3")

  # Answers the square of a number. With "grow" it has a child that uses more than 60 MB.
  @program """
  import os, sys, time
  for line in sys.stdin:
      if line == "grow\\n":
          there, here = os.pipe()
          if os.fork() == 0:
              memory = bytearray(b"x" * 60_000_000)
              os.write(here, b".")
              time.sleep(600)
          os.read(there, 1)
          print(os.getpid(), flush=True)
      else:
          print(int(line) ** 2, flush=True)
  """

  @squares [
    cmd: ["sh", "-c", "while read n; do echo $((n * n)); done"],
    stdio: :pipe,
    packet: :line
  ]

  defp start(opts) do
    {:ok, pool} = Pool.start_link(opts)
    pool
  end

  defp square(pool, number, opts \\ []) do
    with_worker = fn worker ->
      {Worker.request(worker, "#{number}\n", 30_000), Worker.os_pid!(worker)}
    end

    Pool.with_worker(pool, with_worker, [timeout: 60_000] ++ opts)
  end

  defp os_pids(pool), do: for(%{os_pid: os_pid} <- Pool.list_workers(pool), os_pid, do: os_pid)

  test "workers that were lent often enough are exchanged while callers go on" do
    pool = start(size: 2, worker: @squares, max_requests: 5, max_queue: 4)
    first = os_pids(pool)

    served =
      for caller <- 1..4 do
        Task.async(fn ->
          for n <- 1..60 do
            number = 100 * caller + n
            expected = "#{number * number}\n"
            assert {{:ok, ^expected}, os_pid} = square(pool, number)
            os_pid
          end
        end)
      end
      |> Task.await_many(60_000)
      |> Enum.concat()
      |> Enum.uniq()

    assert length(served) > 2
    assert %{size: 2, last_error: nil} = Pool.info(pool)
    eventually(fn -> match?(%{idle: 2, stopping: 0, starting: 0}, Pool.info(pool)) end)
    refute Enum.any?(first, &ProcScan.running?/1)
    assert length(os_pids(pool)) == 2
  end

  test "age alone is enough, and so is the memory of what a worker has started" do
    pool = start(size: 1, worker: @squares, max_age: 50)
    [first] = os_pids(pool)
    eventually(fn -> not ProcScan.running?(first) and match?([_one], os_pids(pool)) end)

    worker = [cmd: [@python, "-c", @program], stdio: :pipe, packet: :line]
    pool = start(size: 1, worker: worker, max_memory: 50_000_000, memory_interval: 20)
    [first] = os_pids(pool)
    assert {{:ok, "9\n"}, ^first} = square(pool, 3)
    assert {{:ok, _pid}, ^first} = square(pool, "grow")
    eventually(fn -> not ProcScan.running?(first) end)
    assert {{:ok, "16\n"}, second} = square(pool, 4)
    refute second == first
    assert %{last_error: nil} = Pool.info(pool)
  end

  test "it starts as many as callers wait for, and ends them when nobody does" do
    token = Family.token()
    pool = start(min: 0, max: 2, idle_timeout: 20, worker: [cmd: ["sleep", token]])
    assert %{size: 0, min: 0, max: 2} = Pool.info(pool)
    assert Pool.await_ready(pool) == :ok

    two =
      Pool.with_worker(pool, fn _one ->
        Pool.with_worker(pool, fn _two -> length(Family.members(token)) end, timeout: 60_000)
      end)

    assert two == 2
    eventually(fn -> Pool.info(pool).workers == [] end)
    assert Family.members(token) == []
    assert Pool.resize(pool, 1..3) == :ok
    assert Pool.await_ready(pool) == :ok
    assert %{size: 1, min: 1, max: 3} = Pool.info(pool)
  end

  test "who may not wait is told at once" do
    pool = start(size: 1, worker: [cmd: ["sleep", "600"]], max_queue: 0)
    :ok = Pool.await_ready(pool)

    error =
      Pool.with_worker(pool, fn _ ->
        # From another process, as nobody can wait for himself.
        Task.async(fn -> Pool.with_worker(pool, & &1, timeout: :infinity) end)
        |> Task.await(60_000)
      end)

    assert {:error, %Error{reason: :busy} = error} = error
    assert Exception.message(error) =~ ":max_queue"
    assert is_pid(Pool.with_worker(pool, & &1))
  end

  test "a key has the same worker until that ends" do
    pool = start(size: 3, worker: @squares)
    :ok = Pool.await_ready(pool)
    {_answer, mine} = square(pool, 1, key: {:session, 1}, affinity: :strict)

    for _ <- 1..5,
        do: assert({{:ok, "4\n"}, ^mine} = square(pool, 2, key: {:session, 1}, affinity: :strict))

    test = self()

    Pool.with_worker(
      pool,
      fn _worker ->
        spawn_link(fn ->
          send(test, {:strict, square(pool, 3, key: {:session, 1}, affinity: :strict)})
        end)

        eventually(fn -> Pool.info(pool).queued == 1 end)
        {_answer, other} = square(pool, 3, key: {:session, 1})
        assert other != mine
        fail_fast = [key: {:session, 1}, affinity: :fail_fast]
        assert {:error, %Error{reason: :busy} = error} = Pool.with_worker(pool, & &1, fail_fast)
        assert Exception.message(error) =~ "this key"
      end,
      key: {:session, 1}
    )

    assert_receive {:strict, {{:ok, "9\n"}, ^mine}}, 20_000

    # Nobody is refused because it is gone.
    kill(mine)
    eventually(fn -> mine not in os_pids(pool) end)
    assert {{:ok, "25\n"}, next} = square(pool, 5, key: {:session, 1}, affinity: :strict)
    assert next != mine
  end

  test "a worker is ready when it is warm" do
    go = :atomics.new(1, [])
    test = self()

    warm_up = fn worker ->
      send(test, {:warm, Worker.request(worker, "9\n", 30_000)})
      eventually(fn -> :atomics.get(go, 1) == 1 end)
    end

    pool = start(size: 1, worker: @squares, warm_up: warm_up)
    assert_receive {:warm, {:ok, "81\n"}}, 20_000
    assert %{starting: 1, idle: 0} = Pool.info(pool)
    assert {:error, %Error{reason: :timeout}} = Pool.with_worker(pool, & &1, timeout: 0)
    :atomics.put(go, 1, 1)
    assert {{:ok, "4\n"}, _os_pid} = square(pool, 2)

    for {warm_up, message} <- [
          {fn _worker -> raise "cold" end, "cold"},
          {fn _worker -> :cold end, ":cold"},
          {{Worker, :request, ["1\n"]}, nil}
        ] do
      pool = start(size: 1, worker: @squares, warm_up: warm_up)

      if message do
        eventually(fn -> Pool.info(pool).last_error end)
        assert %{operation: :warm_up} = error = Pool.info(pool).last_error
        assert Exception.message(error) =~ message
      else
        assert Pool.await_ready(pool) == :ok
      end
    end
  end

  test "launches that hang stop neither the pool nor the launches after them" do
    :ok = :sys.suspend(Snakepit.Guardian)
    pool = start(size: 3, launches: 1, launch_timeout: 20, worker: [cmd: ["sleep", "600"]])
    assert %{size: 3, starting: 3, idle: 0} = Pool.info(pool)
    assert {:error, %Error{reason: :timeout}} = Pool.with_worker(pool, & &1, timeout: 0)
    # All three, although each of them waits.
    eventually(fn -> Enum.all?(Pool.list_workers(pool), & &1.pid) end)
    :ok = :sys.resume(Snakepit.Guardian)
    assert Pool.await_ready(pool, 60_000) == :ok
  end
end
