defmodule Snakepit.Bench.Guardian do
  @moduledoc """
  Starting processes through the gate until they run, and what happens when the BEAM is killed.

  The baselines are a loop in Rust that does nothing else, written in two ways. All rounds of all ways
  are interleaved, so that what else the machine does bears on all alike; a figure is the median of
  its rounds.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{BareLoop, SecondBeam, Spawning}

  @rounds 5
  # Of what takes moments: as many as steady a median.
  @short_rounds 15
  @few 200
  @many 1000
  @heap_gib 4

  # Lists of 64 MiB each, in heaps made to measure: nothing is ever collected or copied.
  @fill """
  for _ <- 1..#{@heap_gib * 16} do
    cells = 4 * 1024 * 1024
    bench = self()
    options = [:link, min_heap_size: 2 * cells + 1000]
    :erlang.spawn_opt(fn ->
      list = :lists.seq(1, cells)
      send(bench, :filled)
      receive do: (:never -> list)
    end, options)
    receive do: (:filled -> :ok)
  end
  :filled
  """

  @impl true
  def run do
    loop = BareLoop.build()
    starts(loop) ++ large_heap() ++ killed_beam(loop)
  end

  # In the same rounds, so that a bad moment of the machine's is not all that one of them has seen.
  defp starts(loop) do
    ways = [
      gate: fn -> Spawning.one_after_the_other(@few) end,
      fork: fn -> BareLoop.start(loop, :fork, @few).started end,
      spawn: fn -> BareLoop.start(loop, :spawn, @few).started end,
      gate_at_once: fn ->
        {us, _os_pids} = Spawning.at_once(@many)
        Spawning.end_all()
        us
      end,
      fork_many: fn -> Enum.sum(BareLoop.start(loop, :fork, @many).started) end
    ]

    us = rounds("#{@few} one after the other, #{@many} at once", ways, @short_rounds)
    one_after_the_other(us) ++ at_once(us)
  end

  defp one_after_the_other(us) do
    p50 = &percentile(&1, 50)

    # The median is what most callers meet. What it leaves out, because some other caller or some
    # other moment pays for it, shows in the mean and in the last percent.
    for {figure, way, label, target} <- [
          {{"p50", p50}, :fork, "fork and exec", at_most(1.1)},
          {{"mean", &mean/1}, :fork, "fork and exec", nil},
          {{"p99", &percentile(&1, 99)}, :fork, "fork and exec", nil},
          {{"p50", p50}, :spawn, "posix_spawn", nil}
        ] do
      {name, fun} = figure

      row(
        name: "start, one after the other, #{name}, beside #{label}",
        rounds: beside(us.gate, us[way], fun),
        unit: "µs",
        target: target
      )
    end
  end

  defp at_once(us) do
    per_second = fn us -> @many / (us / 1_000_000) end

    [
      row(
        name: "start, #{@many} at once, beside fork and exec one after the other",
        rounds: beside(us.gate_at_once, us.fork_many, per_second),
        unit: "processes/s",
        better: :higher,
        target: {:ratio, 0.9}
      )
    ]
  end

  defp large_heap do
    SecondBeam.with_beam(fn empty ->
      SecondBeam.with_beam(fn full ->
        :filled = SecondBeam.run(full, @fill)
        true = memory(full.os_pid, "Rss") >= @heap_gib * 1024 * 1024
        code = "Snakepit.Bench.Spawning.one_after_the_other(#{@few})"

        ways =
          for {way, beam} <- [full: full, empty: empty],
              do: {way, fn -> SecondBeam.run(beam, code) end}

        us = rounds("#{@heap_gib} GiB of heap", ways, @short_rounds)

        [
          row(
            name: "start, p50, BEAM with #{@heap_gib} GiB of heap, beside an empty one",
            rounds: beside(us.full, us.empty, &percentile(&1, 50)),
            unit: "µs",
            target: at_most(1.1)
          )
        ]
      end)
    end)
  end

  defp killed_beam(loop) do
    ways = [
      beam: fn -> SecondBeam.with_beam(&kill_beam(loop, &1)) end,
      fork: fn -> BareLoop.start(loop, :fork, @many).killed end
    ]

    found = rounds("kill -9 of a BEAM with #{@many}", ways, @rounds)

    # The proportional share counts each page once: a page of libc is divided among all that use it, a
    # page of the guardian's own among it and the children that wait at the gate, which is why those
    # belong to the sum. The resident pages of the guardian count libc's as if nobody else used them.
    [
      row(
        name:
          "kill -9 of the BEAM until all #{@many} are gone, beside the loop that kills and reaps",
        rounds: beside(Enum.map(found.beam, & &1.us), found.fork, &(&1 / 1000)),
        unit: "ms",
        target: at_most(2)
      ),
      row(
        name: "memory of guardian and waiting children with #{@many} quiet workers, proportional",
        value: found.beam |> Enum.map(& &1.pss_mb) |> Enum.max(),
        unit: "MB",
        target: {:value, 3.0}
      ),
      row(
        name: "memory of the guardian alone, all resident pages",
        value: found.beam |> Enum.map(& &1.rss_mb) |> Enum.max(),
        unit: "MB"
      )
    ]
  end

  defp kill_beam(loop, beam) do
    {_us, os_pids} = SecondBeam.run(beam, "Snakepit.Bench.Spawning.at_once(#{@many})")
    guardian = SecondBeam.run(beam, "Snakepit.Guardian.os_pid()")
    children = File.read!("/proc/#{guardian}/task/#{guardian}/children") |> String.split()
    waiting = Enum.map(children, &String.to_integer/1) -- os_pids
    pss = Enum.sum(for os_pid <- [guardian | waiting], do: memory(os_pid, "Pss"))
    rss = memory(guardian, "Rss")
    us = BareLoop.kill_and_watch(loop, beam.os_pid, os_pids)
    %{us: us, pss_mb: pss * 1024 / 1_000_000, rss_mb: rss * 1024 / 1_000_000}
  end

  # In kB, as the kernel counts them.
  defp memory(os_pid, key) do
    rollup = File.read!("/proc/#{os_pid}/smaps_rollup")
    [_, kb] = Regex.run(~r/^#{key}: +(\d+) kB$/m, rollup)
    String.to_integer(kb)
  end

  defp rounds(label, ways, count) do
    rounds =
      for round <- 1..count do
        progress("#{label}, round #{round} of #{count}")
        Map.new(ways, fn {way, fun} -> {way, fun.()} end)
      end

    Map.new(ways, fn {way, _fun} -> {way, Enum.map(rounds, & &1[way])} end)
  end

  defp mean(values), do: Enum.sum(values) / length(values)

  # Round by round, what `fun` makes of each.
  defp beside(ours, theirs, fun), do: Enum.zip(Enum.map(ours, fun), Enum.map(theirs, fun))

  # "At most `times` as long" as what the harness asks for: how many times better.
  defp at_most(times), do: {:ratio, Float.ceil(1 / times, 3)}
end
