defmodule Snakepit.Bench.Killed do
  @moduledoc """
  From `kill -9` of a BEAM until all of its processes are gone and reaped, beside a loop in Rust that
  kills and reaps as many children of its own.

  Ten take a millisecond in the loop, which is less than a BEAM takes to die. So there is a target from
  a hundred on.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{BareLoop, SecondBeam, Turns}

  # Sizes, and how many rounds of each there are.
  @sizes [{10, 12}, {100, 12}, {1000, 9}, {3000, 7}]
  @within_ms 45_000

  @impl true
  def run do
    loop = BareLoop.build()
    for {size, rounds} <- @sizes, do: killed(loop, size, rounds)
  end

  defp killed(loop, size, rounds) do
    ways = [
      beam: fn -> SecondBeam.with_beam(&kill_beam(loop, &1, size)) / 1000 end,
      loop: fn -> BareLoop.start(loop, :fork, size).killed / 1000 end
    ]

    label = "kill -9 of a BEAM with #{size}"
    rounds = Turns.each(ways, label: label, rounds: rounds, within_ms: @within_ms)

    row(
      name: "kill -9 of the BEAM until all #{size} are gone, beside a loop that kills and reaps",
      rounds: Turns.beside(rounds, :beam, :loop, & &1),
      unit: "ms",
      target: if(size >= 100, do: {:ratio, 1.5}),
      scale: %{
        figure: "kill -9 of the BEAM until all are gone",
        of: "processes of the BEAM",
        size: size,
        beside: "bare loop: kill and reap"
      }
    )
  end

  defp kill_beam(loop, beam, size) do
    {_us, os_pids} = SecondBeam.run(beam, "Snakepit.Bench.Spawning.at_once(#{size})")
    BareLoop.kill_and_watch(loop, beam.os_pid, os_pids)
  end
end
