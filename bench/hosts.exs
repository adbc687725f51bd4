defmodule Snakepit.Bench.Hosts do
  @moduledoc """
  What running a command, and starting and stopping a worker, cost on a host where others run too.

  A round visits each number of other processes, by turns upwards and downwards, and measures every way
  there. So figures with many others and with none are beside each other as well.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{Herd, Operations, Turns}

  @others [0, 1000, 3000]
  @rounds 12
  @within_ms 150_000
  # Of a turn within a visit.
  @turn [rounds: 2, turn_ms: 150, calls: 3..1000]

  @impl true
  def run do
    Process.flag(:trap_exit, true)

    rounds =
      Turns.repeat(
        [label: "others on the host", rounds: @rounds, within_ms: @within_ms],
        fn number ->
          order = if rem(number, 2) == 1, do: :up, else: :down
          Herd.at_sizes(@others, order, fn _others -> visit() end)
        end
      )

    commands = for others <- @others, do: command_row(rounds, others)
    workers = for others <- @others, do: worker_row(rounds, others)
    commands ++ workers ++ growth(rounds)
  end

  defp visit do
    ways = [
      cmd: fn -> Operations.command(:snakepit) end,
      system: fn -> Operations.command(:system) end,
      worker: fn -> Operations.start_and_stop(:worker) end,
      port: fn -> Operations.start_and_stop(:port) end
    ]

    turns = Turns.run(ways, @turn)
    Map.new(ways, fn {way, _} -> {way, p50_ms(Enum.flat_map(turns, & &1[way]))} end)
  end

  defp p50_ms(us), do: percentile(us, 50) / 1000

  defp command_row(rounds, others) do
    row(
      name: "Snakepit.cmd, p50, #{others} others, beside System.cmd",
      rounds: for(round <- rounds, do: {round[others].cmd, round[others].system}),
      unit: "ms",
      target: {:ratio, 1.0},
      scale: scale("Snakepit.cmd", others, "System.cmd")
    )
  end

  defp worker_row(rounds, others) do
    row(
      name: "worker start and stop, p50, #{others} others, beside a port opened, closed and gone",
      rounds: for(round <- rounds, do: {round[others].worker, round[others].port}),
      unit: "ms",
      target: {:ratio, 1.3},
      scale: scale("worker start + stop", others, "Port.open + close, exit seen")
    )
  end

  defp scale(figure, others, beside),
    do: %{figure: figure, of: "other processes on the host", size: others, beside: beside}

  # What the baselines grow by is the machine's.
  defp growth(rounds) do
    {least, most} = Enum.min_max(@others)

    for {way, label, target} <- [
          {:worker, "worker start and stop", {:ratio, 1.1}},
          {:cmd, "Snakepit.cmd", nil},
          {:port, "a port opened, closed and gone", nil},
          {:system, "System.cmd", nil}
        ] do
      row(
        name: "#{label}, p50, #{most} others, beside the same with #{least}",
        rounds: for(round <- rounds, do: {round[most][way], round[least][way]}),
        unit: "ms",
        target: target
      )
    end
  end
end
