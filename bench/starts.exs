defmodule Snakepit.Bench.Starts do
  @moduledoc """
  Starting processes one after the other, each until its program runs.

  The baselines are `Port.open/2`, which returns before the program runs, and a loop in Rust that does
  nothing else, written with `fork` and `exec` and with `posix_spawn`.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{BareLoop, Usage, Ports, SecondBeam, Spawning, Turns}

  @few 200
  @rounds [rounds: 15, within_ms: 60_000]
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
  def run, do: rates() ++ times(BareLoop.build()) ++ large_heap()

  # Recorded, and their exec confirmed, as every worker is.
  defp rates do
    ways = [
      workers: fn ->
        {us, workers} = Spawning.workers(@few)
        Spawning.stop_workers(workers)
        us
      end,
      ports: fn -> Ports.one_after_the_other(@few) end
    ]

    rounds = Turns.each(ways, [label: "#{@few} workers"] ++ @rounds)

    [
      row(
        name: "Worker.start_link, one after the other, beside Port.open",
        rounds: Turns.beside(rounds, :workers, :ports, &(@few / (&1 / 1_000_000))),
        unit: "processes/s",
        better: :higher,
        target: {:ratio, 1.0}
      )
    ]
  end

  defp times(loop) do
    ways = [
      gate: fn -> Spawning.one_after_the_other(@few) end,
      fork: fn -> BareLoop.start(loop, :fork, @few).started end,
      spawn: fn -> BareLoop.start(loop, :spawn, @few).started end
    ]

    rounds = Turns.each(ways, [label: "#{@few} through the gate"] ++ @rounds)
    p50 = &percentile(&1, 50)

    # The median is what most callers meet. What it leaves out, because some other caller or some
    # other moment pays for it, shows in the mean and in the last percent.
    for {{name, fun}, way, label, target} <- [
          {{"p50", p50}, :fork, "fork and exec", {:ratio, 0.85}},
          {{"p99", &percentile(&1, 99)}, :fork, "fork and exec", {:ratio, 2.0}},
          {{"mean", &(Enum.sum(&1) / length(&1))}, :fork, "fork and exec", nil},
          {{"p50", p50}, :spawn, "posix_spawn", nil}
        ] do
      row(
        name: "start, one after the other, #{name}, beside #{label}",
        rounds: Turns.beside(rounds, :gate, way, fun),
        unit: "µs",
        target: target
      )
    end
  end

  defp large_heap do
    SecondBeam.with_beam(fn empty ->
      SecondBeam.with_beam(fn full ->
        :filled = SecondBeam.run(full, @fill)
        true = Usage.kb(full.os_pid, "Rss") >= @heap_gib * 1024 * 1024
        code = "Snakepit.Bench.Spawning.one_after_the_other(#{@few})"
        beams = [full: full, empty: empty]

        rounds =
          Turns.repeat([label: "#{@heap_gib} GiB of heap"] ++ @rounds, fn number ->
            order = if rem(number, 2) == 1, do: beams, else: Enum.reverse(beams)
            Map.new(order, fn {way, beam} -> {way, SecondBeam.run(beam, code)} end)
          end)

        [
          row(
            name: "start, p50, BEAM with #{@heap_gib} GiB of heap, beside an empty one",
            rounds: Turns.beside(rounds, :full, :empty),
            unit: "µs",
            target: {:ratio, 1.1}
          )
        ]
      end)
    end)
  end
end
