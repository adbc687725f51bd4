defmodule Snakepit.Bench.Workers do
  @moduledoc """
  What workers cost beyond their processes: to start, to keep alive, to find when they hang.

  Rounds of what is compared are interleaved, so that what else the machine does bears on both alike; a
  figure is the median of its rounds.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench
  require Logger

  alias Snakepit.Bench.Spawning
  alias Snakepit.{Pool, Worker}

  @rounds 5
  # What a worker adds is small beside what the machine adds by itself, and that changes from one second
  # to the next: many short rounds.
  @start_rounds 100
  @few 25
  @many 1000
  @minute_ms 60_000
  @ping_interval 2_000
  @interpreters 100

  # Answers heartbeats, and says when: by a clock that bash has and other shells do not.
  @lifeline ~S"""
  while IFS= read -r line <&3; do
    now=${EPOCHREALTIME/[.,]/}
    echo "PONG:${line#PING:}:${now%???}" >&3
  done
  """
  @python "import os, time; os.write(1, b'ready\\n'); time.sleep(600)"

  @impl true
  def run do
    Process.flag(:trap_exit, true)
    # Those that are found to hang say so.
    Logger.configure(level: :none)
    start() ++ heartbeats() ++ interpreters() ++ detection()
  end

  defp start do
    rounds =
      for round <- 1..@start_rounds do
        if rem(round, 20) == 0,
          do: progress("#{@few} one after the other, round #{round} of #{@start_rounds}")

        # By turns the one and the other first: the first may find the machine in another state.
        ways = [worker: fn -> workers(@few) end, raw: fn -> raw(@few) end]
        ways = if rem(round, 2) == 0, do: ways, else: Enum.reverse(ways)
        Map.new(ways, fn {way, fun} -> {way, p50(fun)} end)
      end

    [
      row(
        name: "Worker.start_link until it runs, p50, beside the guardian's spawn and release",
        rounds: Enum.map(rounds, &{&1.worker, &1.raw}),
        unit: "µs"
      ),
      row(
        name: "what a worker adds to that",
        value: percentile(Enum.map(rounds, &(&1.worker - &1.raw)), 50),
        unit: "µs",
        target: {:value, 150}
      )
    ]
  end

  # In a process of its own: a start takes longer in one that has thousands of messages of those that
  # were started before, because it searches them for an answer.
  defp p50(fun), do: fun |> Task.async() |> Task.await(:infinity) |> percentile(50)

  defp raw(count), do: Spawning.one_after_the_other(count)

  defp workers(count) do
    command = Spawning.command()

    {times, workers} =
      Enum.unzip(
        for _one <- 1..count do
          {us, {:ok, worker}} = once(fn -> Worker.start_link(cmd: command) end)
          {us, worker}
        end
      )

    Spawning.stop_workers(workers)
    times
  end

  defp heartbeats do
    progress("#{@many} workers with heartbeats")
    heartbeat = [ping_interval: @ping_interval]
    bash = System.find_executable("bash")

    workers =
      1..@many
      |> Enum.map(fn _ ->
        {:ok, worker} =
          Worker.start_link(cmd: [bash, "-c", @lifeline], heartbeat: heartbeat, ready: :heartbeat)

        worker
      end)

    # Before the minute, in which nothing happens but heartbeats: a thousand who are asked how their
    # worker is take as long as thousands of pings.
    asked_at = System.monotonic_time(:millisecond)
    pongs_before = pongs(workers)
    pause(2 * @ping_interval)

    progress("one minute of heartbeats")
    cpu_before = cpu_ms()
    pause(@minute_ms)
    cpu = cpu_ms() - cpu_before

    expected = @many * (System.monotonic_time(:millisecond) - asked_at) / @ping_interval
    health = healths(workers)
    pongs = Enum.sum(Enum.map(health, & &1.pongs_received)) - pongs_before

    latencies =
      for round <- 1..5, reduce: Enum.map(health, & &1.last_latency_ms) do
        latencies ->
          # The one after the next: to be asked has disturbed the next.
          if round > 1, do: pause(2 * @ping_interval)
          Enum.map(healths(workers), & &1.last_latency_ms) ++ latencies
      end

    lost =
      Enum.count(health, &(&1.missed_heartbeats > 0 or &1.pings_sent - &1.pongs_received > 1))

    Spawning.stop_workers(workers)

    [
      row(
        name: "CPU time of the BEAM, #{@many} workers with heartbeats every #{@ping_interval} ms",
        value: cpu / @minute_ms * 100,
        unit: "% of a core",
        target: {:value, 2.0}
      ),
      row(
        name: "pong latency, p95 of #{length(latencies)}",
        value: percentile(latencies, 95),
        unit: "ms",
        # Below 5: these are whole milliseconds, of which the rest is cut off.
        target: {:value, 4}
      ),
      row(name: "workers with a miss", value: lost, unit: "workers", target: {:value, 0}),
      row(
        name: "pongs until then, of those expected",
        value: pongs / expected * 100,
        unit: "%",
        better: :higher,
        target: {:value, 98}
      )
    ]
  end

  defp healths(workers), do: Enum.map(workers, &Worker.info!(&1).heartbeat)
  defp pongs(workers), do: workers |> healths() |> Enum.map(& &1.pongs_received) |> Enum.sum()

  # User and system time of all threads, in ticks of 10 ms.
  defp cpu_ms do
    [_name, rest] = File.read!("/proc/self/stat") |> String.split(") ", parts: 2)
    fields = String.split(rest)
    10 * (String.to_integer(Enum.at(fields, 11)) + String.to_integer(Enum.at(fields, 12)))
  end

  defp interpreters do
    # Not by a shim that chooses one of several.
    {path, 0} = System.cmd("python3", ["-c", "import sys; print(sys.executable)"])
    python = String.trim(path)

    rounds =
      for round <- 1..@rounds do
        progress("#{@interpreters} interpreters, round #{round} of #{@rounds}")
        %{pool: pool(python), loop: loop(python)}
      end

    [
      row(
        name: "#{@interpreters} Python workers ready, beside a loop of the shell's",
        rounds: Enum.map(rounds, &{&1.pool / 1000, &1.loop / 1000}),
        unit: "ms",
        target: {:ratio, 1.1}
      )
    ]
  end

  defp pool(python) do
    worker = [cmd: [python, "-c", @python], ready: {:output, "ready"}, ready_timeout: 60_000]

    {us, pool} =
      once(fn ->
        {:ok, pool} = Pool.start_link(size: @interpreters, worker: worker)
        :ok = Pool.await_ready(pool, 60_000)
        pool
      end)

    GenServer.stop(pool, :shutdown, :infinity)
    us
  end

  # Until each has said that it is ready. Abandoning the stream ends them.
  defp loop(python) do
    script = ~S|for i in $(seq "$1"); do "$2" -c "$3" & done; wait|
    argv = ["sh", "-c", script, "sh", "#{@interpreters}", python, @python]

    begun = System.monotonic_time(:nanosecond)

    ready =
      Snakepit.stream!(argv, packet: :line)
      |> Stream.take(@interpreters)
      |> Enum.map(fn "ready\n" -> System.monotonic_time(:nanosecond) end)

    (List.last(ready) - begun) / 1000
  end

  defp detection do
    {interval, threshold, misses} = {200, 500, 2}
    progress("stopped workers")

    heartbeat = [
      ping_interval: interval,
      timeout_threshold: threshold,
      max_missed_heartbeats: misses
    ]

    bash = System.find_executable("bash")

    times =
      for _round <- 1..10 do
        {:ok, worker} =
          Worker.start_link(cmd: [bash, "-c", @lifeline], heartbeat: heartbeat, ready: :heartbeat)

        pause(:rand.uniform(interval))
        # Its monitor ends when it has found it.
        found = Process.monitor(:sys.get_state(worker).monitor)
        gone = Process.monitor(worker)
        begun = System.monotonic_time(:millisecond)
        :ok = Worker.signal(worker, :sigstop)
        receive do: ({:DOWN, ^found, :process, _pid, :normal} -> :ok)
        found = System.monotonic_time(:millisecond) - begun
        receive do: ({:DOWN, ^gone, :process, _pid, :heartbeat_timeout} -> :ok)
        {found, System.monotonic_time(:millisecond) - begun}
      end

    {found, gone} = Enum.unzip(times)

    [
      row(
        name: "a stopped worker is found, the longest of #{length(times)}",
        value: Enum.max(found),
        unit: "ms",
        target: {:value, threshold * misses + interval}
      ),
      row(
        name: "and its process is gone, the longest of #{length(times)}",
        value: Enum.max(gone),
        unit: "ms"
      )
    ]
  end

  defp pause(ms) do
    receive do
    after
      ms -> :ok
    end
  end
end
