defmodule Snakepit.Bench.AtOnce do
  @moduledoc """
  A thousand commands at once on a host where others run too, beside `System.cmd`.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{Herd, Operations, Turns}

  @count 1000
  @others [0, 1000, 3000]
  @rounds [label: "#{@count} at once, others on the host", rounds: 8, within_ms: 120_000]

  @impl true
  def run do
    # The first thousand make the BEAM's tables as large as they need to be.
    visit()

    rounds =
      Turns.repeat(@rounds, fn number ->
        order = if rem(number, 2) == 1, do: :up, else: :down
        Herd.at_sizes(@others, order, fn _others -> visit() end)
      end)

    for others <- @others do
      row(
        name: "Snakepit.cmd, #{@count} at once, #{others} others, beside System.cmd",
        rounds: Enum.flat_map(rounds, & &1[others]),
        unit: "processes/s",
        better: :higher,
        target: {:ratio, 1.0},
        scale: %{
          figure: "#{@count} Snakepit.cmd at once",
          of: "other processes on the host",
          size: others,
          beside: "System.cmd"
        }
      )
    end
  end

  defp visit do
    ways =
      for way <- [:snakepit, :system],
          do: {way, fn -> Operations.commands_at_once(way, @count) end}

    per_second = fn us -> @count / (us / 1_000_000) end
    ways |> Turns.each(rounds: 2) |> Turns.beside(:snakepit, :system, per_second)
  end
end
