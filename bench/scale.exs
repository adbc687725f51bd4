defmodule Snakepit.Bench.Scale do
  @moduledoc """
  How figures grow with the number of processes, beside how those of the plainest way do.

  Rounds of what is compared are interleaved, so that what else the machine does bears on all alike; a
  figure is the median of its rounds.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{BareLoop, DeadRuns, Ports, SecondBeam, Spawning}

  # Sizes, and how many rounds of each there are.
  @sizes [{10, 5}, {100, 5}, {1000, 3}, {3000, 3}]
  # What takes a few milliseconds is repeated within a round, until about that many are started.
  @enough 200

  @impl true
  def run do
    loop = BareLoop.build()
    measures = [&killed(loop, &1), &started(loop, &1), &commands/1, &cleaned_up/1]
    for measure <- measures, size <- @sizes, row <- measure.(size), do: row
  end

  defp killed(loop, {size, _} = scale) do
    found =
      rounds("kill -9 of a BEAM with #{size}", scale,
        snakepit: fn -> SecondBeam.with_beam(&kill_beam(loop, &1, size)) end,
        loop: fn -> BareLoop.start(loop, :fork, size).killed / 1000 end
      )

    [
      row(
        name:
          "kill -9 of the BEAM until all #{size} are gone, beside a loop that kills and reaps",
        rounds: beside(found, :loop),
        unit: "ms",
        scale: {"kill -9 of the BEAM until all are gone", size, "bare loop: kill and reap"}
      )
    ]
  end

  defp kill_beam(loop, beam, size) do
    {_us, os_pids} = SecondBeam.run(beam, "Snakepit.Bench.Spawning.at_once(#{size})")
    BareLoop.kill_and_watch(loop, beam.os_pid, os_pids) / 1000
  end

  defp started(loop, {size, _} = scale) do
    per_second = fn us -> size / (us / 1_000_000) end

    found =
      rounds("#{size} at once", scale,
        snakepit: fn -> per_second.(repeated(size, fn -> at_once(size) end)) end,
        loop: fn -> per_second.(repeated(size, fn -> in_a_loop(loop, size) end)) end,
        ports: fn -> per_second.(repeated(size, fn -> Ports.at_once(size) end)) end
      )

    for {way, label} <- [loop: "a loop of fork and exec", ports: "Port.open"] do
      row(
        name: "start, #{size} at once, beside #{label}",
        rounds: beside(found, way),
        unit: "processes/s",
        better: :higher,
        scale: {"start, all at once", size, label}
      )
    end
  end

  defp at_once(size) do
    {us, _os_pids} = Spawning.at_once(size)
    Spawning.end_all()
    us
  end

  defp in_a_loop(loop, size), do: Enum.sum(BareLoop.start(loop, :fork, size).started)

  # From the call to the result, each by a process of its own.
  defp commands({size, _} = scale) do
    program = System.find_executable("true")

    found =
      rounds("#{size} commands at once", scale,
        snakepit: fn ->
          repeated(size, fn -> run_all(size, &Snakepit.cmd/2, program) end) / 1000
        end,
        system: fn -> repeated(size, fn -> run_all(size, &System.cmd/2, program) end) / 1000 end
      )

    [
      row(
        name: "Snakepit.cmd, #{size} at once, until all have ended, beside System.cmd",
        rounds: beside(found, :system),
        unit: "ms",
        scale: {"commands run to their end, all at once", size, "System.cmd"}
      )
    ]
  end

  defp run_all(size, cmd, program) do
    tasks = fn -> for _one <- 1..size, do: Task.async(fn -> cmd.(program, []) end) end
    {us, results} = once(fn -> Task.await_many(tasks.(), :infinity) end)
    true = Enum.all?(results, &match?({"", 0}, &1))
    us
  end

  defp cleaned_up({size, _} = scale) do
    found =
      rounds("orphans of a dead run, #{size}", scale,
        snakepit: fn -> orphaned(size, fn directory, _ -> DeadRuns.start_ms(directory) end) end,
        pipeline: fn -> orphaned(size, fn _, run_id -> pipeline(run_id) end) end
      )

    [
      row(
        name: "start after a crash with #{size} orphans, all gone, beside grep and kill",
        rounds: beside(found, :pipeline),
        unit: "ms",
        scale: {"clean-up of a dead run's orphans", size, "grep /proc/*/environ | xargs kill"}
      )
    ]
  end

  defp orphaned(size, fun) do
    DeadRuns.with_dead_runs(1, size, fn directory, [run_id] -> fun.(directory, run_id) end)
  end

  # `kill` does not wait for what it signals to die, and has the advantage of that. Whoever ends while
  # they are being listed is none of `grep`'s business.
  @pipeline ~S"""
  grep -lzx "SNAKEPIT_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | xargs kill
  """

  defp pipeline(run_id) do
    {us, {"", 0}} = once(fn -> System.cmd("sh", ["-c", @pipeline, "sh", run_id]) end)
    DeadRuns.await_members(run_id, 0)
    us / 1000
  end

  defp rounds(label, {_size, count}, ways) do
    for round <- 1..count do
      progress("#{label}, round #{round} of #{count}")
      Map.new(ways, fn {way, fun} -> {way, fun.()} end)
    end
  end

  defp beside(rounds, way), do: Enum.map(rounds, &{&1.snakepit, &1[way]})

  defp repeated(size, fun) do
    times = for _time <- 1..max(1, div(@enough, size)), do: fun.()
    Enum.sum(times) / length(times)
  end
end
