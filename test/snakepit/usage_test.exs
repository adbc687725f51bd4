defmodule Snakepit.UsageTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.{RunState, Usage}
  alias Snakepit.Test.{Beam, Family, Told}

  @python System.find_executable("python3")
  @telemetry Path.expand("../fixtures/telemetry.exs", __DIR__)
  # The kernel counts processor time in ticks, of each process.
  @tick_us 10_000

  # Uses 0.2 s of processor time and ends.
  @burn "import time\nwhile time.process_time() < 0.2: pass"

  @tag :tmp_dir
  test "what one process uses is what it says, whatever else runs", %{tmp_dir: directory} do
    {:ok, worker} =
      Worker.start_link(
        id: "uses",
        cmd: [@python, fixture("uses_resources.py"), Path.join(directory, "written")],
        ready: {:output, "used"},
        ready_timeout: 60_000
      )

    assert {:ok, %Usage{processes: 1, threads: 4, pss_bytes: nil} = usage} = Worker.usage(worker)
    # The processor time of the child that it has waited for is in it.
    assert usage.user_us + usage.system_us >= 500_000 - 4 * @tick_us
    assert usage.rss_bytes > 64 * 1024 * 1024
    assert usage.descriptors >= 43
    assert usage.written_bytes >= 1_000_000 and usage.read_bytes > 0
    assert is_integer(usage.storage_read_bytes) and is_integer(usage.storage_written_bytes)

    assert {:ok, %Usage{pss_bytes: pss}} = Worker.usage(worker, pss: true)
    assert pss in (64 * 1024 * 1024)..usage.rss_bytes

    assert %{usage: %Usage{processes: 1}, id: "uses"} = Worker.info!(worker)
    assert {:ok, [row]} = Worker.processes(worker)
    assert %{name: "python3" <> _, arguments: [_python, _fixture, _file], alive: true} = row
    assert row.parent == Snakepit.Guardian.os_pid()

    {:ok, {child, _scope}} = GenServer.call(worker, :child)
    Worker.stop(worker)
    assert {:error, %Error{reason: :worker_down}} = Worker.usage(worker)
    assert {:error, %Error{reason: :esrch}} = Usage.of(child, false)
  end

  test "all of a tree counts, also in other sessions and with an empty environment, and nothing else" do
    token = Family.token()
    other = Family.token()
    {:ok, worker} = Worker.start_link(cmd: ["sh", "-c", Family.script(token)])
    {:ok, _neighbour} = Worker.start_link(cmd: ["sh", "-c", Family.script(other)])
    Family.await(token)
    Family.await(other)

    {:ok, rows} = Worker.processes(worker)
    leader = Worker.os_pid!(worker)
    os_pids = for row <- rows, do: row.os_pid
    assert Enum.sort(Enum.uniq([leader | Family.members(token)])) == Enum.sort(os_pids)

    {:ok, usage} = Worker.usage(worker)
    assert usage.processes == length(rows)
    assert usage.threads == usage.processes
    assert usage.rss_bytes == Enum.sum(for row <- rows, do: row.rss_bytes)
  end

  test "the time of a daemon that has ended is still counted" do
    script = "(setsid #{@python} -c '#{@burn}' &); sleep 600"
    {:ok, worker} = Worker.start_link(cmd: ["sh", "-c", script])
    # The daemon has come and gone when its time is that of nobody who runs.
    ended? = fn ->
      {:ok, usage} = Worker.usage(worker)
      {:ok, rows} = Worker.processes(worker)
      running = Enum.sum(for row <- rows, do: row.user_us + row.system_us)
      usage.user_us + usage.system_us - running >= 200_000 - 2 * @tick_us
    end

    eventually(ended?, 60_000)
  end

  test "at its end a process's event and the run's history say what was used" do
    beam = Beam.start([], libraries: [@telemetry])
    opts = [id: "burns", cmd: [@python, "-c", @burn]]
    {_os_pid, events} = Beam.call(beam, Told, :life, [opts, :itself])

    assert [used] = for({[_, :process, :terminated], used, _metadata} <- events, do: used)
    assert used.user_us + used.system_us >= 200_000 - 2 * @tick_us
    assert used.max_rss_kb > 1_000

    run_id = Beam.run(beam, "Snakepit.run_id()")
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    {:ok, run} = Beam.call(beam, RunState, :fetch, [run_id])
    # The guardian has waited for that process and for those that had not run.
    assert run.usage.user_us + run.usage.system_us >= used.user_us + used.system_us
    assert run.usage.max_rss_kb >= used.max_rss_kb
    Beam.kill(beam)
  end
end
