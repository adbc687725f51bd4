defmodule Snakepit.Bench.Metrics do
  @moduledoc """
  What counting an event costs the process in which it happens, beside adding to a bare counter.

  The event is the one that comes most often and does the most: a pong, which finds the group of a worker among a
  hundred, and adds to a counter and to a histogram.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.Turns
  alias Snakepit.Telemetry

  @batch 100_000
  @rounds [rounds: 15, within_ms: 30_000]
  # Of one event.
  @target_us 1.0

  @impl true
  def run do
    counter = :counters.new(1, [])
    off = rounds("metrics off", fn -> pongs(@batch) end, counter)
    {:ok, owner} = Snakepit.Metrics.start_link(max_groups: 100)
    # The last of many.
    for n <- 1..99, do: pong("group#{n}x-1")
    on = rounds("metrics on", fn -> pongs(@batch) end, counter)
    text = time(20, fn -> Snakepit.Metrics.text() end)
    GenServer.stop(owner)

    [
      row(
        name: "an event with metrics, beside :counters.add",
        rounds: on,
        unit: "µs",
        target: {:value, @target_us}
      ),
      row(name: "an event without metrics, beside :counters.add", rounds: off, unit: "µs"),
      row(name: "the text of 100 groups", value: text.p50 / 1000, unit: "ms")
    ]
  end

  defp rounds(label, events, counter) do
    ways = [
      events: fn -> elem(once(events), 0) end,
      add: fn -> elem(once(fn -> add(counter, @batch) end), 0) end
    ]

    rounds = Turns.each(ways, [label: label] ++ @rounds)
    Turns.beside(rounds, :events, :add, &(&1 / @batch))
  end

  defp pongs(0), do: :ok

  defp pongs(count) do
    pong("MyApp.Python-12")
    pongs(count - 1)
  end

  defp pong(id) do
    measurements = %{count: 1, latency_ms: 3}
    metadata = %{worker_id: id, worker_pid: self()}
    Telemetry.execute([:snakepit, :heartbeat, :pong_received], measurements, metadata)
  end

  defp add(_counter, 0), do: :ok

  defp add(counter, count) do
    :counters.add(counter, 1, 1)
    add(counter, count - 1)
  end
end
