defmodule Snakepit.Bench.Scale do
  @moduledoc """
  How long many take at once, from ten to thousands, beside how long they take in the plainest way.

  Rounds of what is compared are interleaved, so that what else the machine does bears on all alike; a
  figure is the median of its rounds.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{BareLoop, Operations, Ports, Spawning}

  # Sizes, and how many rounds of each there are.
  @sizes [{10, 5}, {100, 5}, {1000, 3}, {3000, 3}]
  # What takes a few milliseconds is repeated within a round, until about that many are started.
  @enough 200

  @impl true
  def run do
    loop = BareLoop.build()
    measures = [&started(loop, &1), &commands/1]
    for measure <- measures, size <- @sizes, row <- measure.(size), do: row
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
        target: if(size == 1000 and way == :loop, do: {:ratio, 0.9}),
        scale: scale("start, all at once", size, label)
      )
    end
  end

  defp at_once(size) do
    {us, _os_pids} = Spawning.at_once(size)
    Spawning.end_all()
    us
  end

  defp in_a_loop(loop, size), do: Enum.sum(BareLoop.start(loop, :fork, size).started)

  defp commands({size, _} = scale) do
    ways =
      for way <- [:snakepit, :system] do
        {way, fn -> repeated(size, fn -> Operations.commands_at_once(way, size) end) / 1000 end}
      end

    [
      row(
        name: "Snakepit.cmd, #{size} at once, until all have ended, beside System.cmd",
        rounds: beside(rounds("#{size} commands at once", scale, ways), :system),
        unit: "ms",
        scale: scale("commands run to their end, all at once", size, "System.cmd")
      )
    ]
  end

  defp scale(figure, size, beside),
    do: %{figure: figure, of: "processes", size: size, beside: beside}

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
