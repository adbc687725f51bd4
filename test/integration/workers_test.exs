defmodule Snakepit.WorkersTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.{Guardian, Pool}
  alias Snakepit.Test.{Beam, Family, Program}

  @moduletag :long

  @python System.find_executable("python3")
  @amounts [:memory, :resident, :atoms]
  # Ten thousand take half an hour.
  @all? System.get_env("SNAKEPIT_LONG") != nil
  @cycles if @all?, do: 10_000, else: 300
  @moduletag timeout: if(@all?, do: 3_600_000, else: 120_000)

  setup_all do: fresh_supervisor()

  test "100 Python workers, 1000 callers, 20 killed at random: everyone gets an answer, nothing is left" do
    bystanders = Family.bystanders()

    {:ok, pool} =
      Pool.start_link(
        size: 100,
        worker: [cmd: [@python, fixture("squares.py")], stdio: :pipe, packet: :line]
      )

    assert Pool.await_ready(pool, 60_000) == :ok
    first = for worker <- Pool.list_workers(pool), do: worker.os_pid
    assert length(Enum.uniq(first)) == 100
    assert Enum.all?(first, &ProcScan.running?/1)
    answered = :counters.new(1, [:atomics])

    callers =
      for number <- 1..1_000 do
        Task.async(fn ->
          answer =
            Pool.with_worker(
              pool,
              fn worker -> Worker.request(worker, "#{number}\n", 60_000) end,
              timeout: 60_000
            )

          :counters.add(answered, 1, 1)
          {number, answer}
        end)
      end

    # Spread over the whole time, whoever is there.
    killed =
      for n <- 1..20 do
        eventually(fn -> :counters.get(answered, 1) >= n * 40 end, 60_000)

        os_pids =
          for %{os_pid: os_pid, state: state} <- Pool.list_workers(pool),
              state in [:idle, :busy],
              do: os_pid

        victim = Enum.random(os_pids)
        System.cmd("kill", ["-KILL", "#{victim}"], stderr_to_stdout: true)
        victim
      end

    answers = Task.await_many(callers, 120_000)
    {good, bad} = Enum.split_with(answers, &match?({_number, {:ok, _line}}, &1))
    for {number, {:ok, line}} <- good, do: assert(line == "#{number * number}\n")

    # One caller for each that was killed, at the most.
    assert length(bad) <= 20

    for {_number, answer} <- bad, do: assert({:error, %Error{reason: :worker_down}} = answer)

    # The last may have been idle, with nobody there who would notice that it is gone before the pool does.
    eventually(fn -> not Enum.any?(Pool.list_workers(pool), &(&1.os_pid in killed)) end)
    assert Pool.await_ready(pool, 60_000) == :ok
    assert %{size: 100, idle: 100, queued: 0} = Pool.info(pool)
    now = for worker <- Pool.list_workers(pool), do: worker.os_pid
    assert length(now -- first) in 10..20
    assert Enum.all?(now, &ProcScan.running?/1)
    :ok = GenServer.stop(pool, :normal, 60_000)
    refute Enum.any?(first ++ now, &ProcScan.running?/1)
    assert ProcessRegistry.list_all_workers() == []
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  test "#{@cycles} starts and stops leave no process, descriptor, atom, entry or memory" do
    # What is captured of the log would be memory that grows.
    level = Logger.level()
    Logger.configure(level: :none)
    on_exit(fn -> Logger.configure(level: level) end)
    guardian = Guardian.os_pid()
    # Whatever is loaded, interned or allocated once, by counting too.
    cycles(60)
    settled(guardian)
    before = settled(guardian)
    cycles(@cycles)
    later = settled(guardian)
    assert Map.drop(later, @amounts) == Map.drop(before, @amounts)
    # Something may happen for the first time in all those minutes; none of it in each cycle.
    assert later.atoms - before.atoms < 20
    # Bytes of the BEAM's own count, and kB of the guardian's resident pages.
    assert later.memory - before.memory < 2_000_000
    assert later.resident - before.resident < 1_000
  end

  defp cycles(count) do
    for n <- 1..count do
      {:ok, worker} = Worker.start_link(kind(rem(n, 6)))
      reason = finish(rem(n, 6), worker)
      receive(do: ({:EXIT, ^worker, ended} -> assert(ended == reason)))
    end
  end

  defp finish(5, _worker), do: {:exit_status, 3}

  defp finish(4, worker) do
    Process.exit(worker, :kill)
    :killed
  end

  defp finish(kind, worker) do
    if kind == 3, do: assert(Worker.request(worker, "x\n") == {:ok, "x\n"})
    assert Worker.stop(worker) == :ok
    :normal
  end

  defp kind(0), do: [cmd: ["sleep", "600"]]
  defp kind(1), do: [cmd: sh("echo up; sleep 600"), ready: {:output, "up"}]
  defp kind(2), do: [cmd: ["sh", fixture("lifeline.sh")], heartbeat: true, ready: :heartbeat]
  defp kind(3), do: [cmd: ["cat"], stdio: :pipe, packet: :line]
  defp kind(4), do: [cmd: sh("sleep 600 & setsid sleep 600 & wait")]
  defp kind(5), do: [cmd: sh("exit 3")]

  # When nothing is on its way out any more, and the guardian has as many children ready as it keeps.
  defp settled(guardian) do
    eventually(fn -> match?({:ok, %{children: 0, ahead: 8, adopted: 0}}, Guardian.info()) end)
    eventually(fn -> ProcessRegistry.list_all_workers() == [] end)
    inventory(guardian)
  end

  defp inventory(guardian) do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)

    %{
      os_processes: Enum.sort(ProcScan.descendants(guardian)),
      descriptors: length(File.ls!("/proc/self/fd")),
      guardian_descriptors: length(File.ls!("/proc/#{guardian}/fd")),
      atoms: :erlang.system_info(:atom_count),
      processes: length(Process.list()),
      ports: length(Port.list()),
      tables: length(:ets.all()),
      entries: ProcessRegistry.list_all_workers(),
      memory: :erlang.memory(:total),
      resident: resident(guardian)
    }
  end

  defp resident(os_pid) do
    [_, kb] = Regex.run(~r/^VmRSS:\s+(\d+) kB$/m, File.read!("/proc/#{os_pid}/status"))
    String.to_integer(kb)
  end

  test "the lifeline alone ends a worker whose BEAM is gone" do
    beam = Beam.start()
    opts = [cmd: [@python, fixture("lifeline.py")], heartbeat: true, ready: :heartbeat]

    Beam.run(
      beam,
      "{:ok, worker} = Snakepit.Worker.start_link(#{inspect(opts)}); Process.register(worker, :worker); :ok"
    )

    os_pid = Beam.run(beam, "Snakepit.Worker.os_pid!(:worker)")
    guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")

    # One that is stopped does nothing, and the kernel's signal comes only with its death.
    kill(guardian, "STOP")
    Beam.kill(beam)
    Beam.await_end(beam)
    eventually(fn -> not ProcScan.running?(os_pid) end)
    kill(guardian, "CONT")
  end

  test "the death of the guardian below pools and workers: all are back, nothing else is" do
    bystander = Program.sleeper()
    token = Family.token()
    {:ok, pool} = Pool.start_link(size: 10, worker: [cmd: ["sleep", token]])

    {:ok, supervisor} =
      Supervisor.start_link([{Worker, id: "beside", cmd: sh(Family.script(token))}],
        strategy: :one_for_one
      )

    eventually(fn -> length(Family.members(token)) == 14 end)

    for _ <- 1..3 do
      # Order: those of this round. The dead of an earlier one say nothing of this guardian's death.
      before = Enum.map(Family.members(token), &ProcScan.stat/1)
      kill(Guardian.os_pid())
      eventually(fn -> not Enum.any?(before, &ProcScan.running?/1) end, 20_000)
      assert Pool.await_ready(pool, 30_000) == :ok
      eventually(fn -> length(Family.members(token)) == 14 end, 20_000)
    end

    :ok = Supervisor.stop(supervisor)
    :ok = GenServer.stop(pool)
    assert Family.members(token) == []
    assert ProcScan.running?(bystander)
  end

  test "a BEAM that is killed takes workers, pools and one-shots along" do
    beam = Beam.start()
    token = Family.token()
    script = Family.script(token)

    Beam.run(beam, """
    {:ok, _} = Snakepit.Worker.start_link(cmd: ["sh", "-c", #{inspect(script)}], output: :logger)
    {:ok, _} = Snakepit.Pool.start_link(size: 5, worker: [cmd: ["sh", "-c", #{inspect(script)}], stdio: :pipe])
    spawn(fn -> Snakepit.cmd("sh", ["-c", #{inspect(script)}]) end)
    :ok
    """)

    eventually(fn -> length(Family.members(token)) == 28 end, 10_000)
    Beam.kill(beam)
    eventually(fn -> Family.members(token) == [] end, 10_000)
  end
end
