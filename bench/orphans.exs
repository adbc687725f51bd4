defmodule Snakepit.Bench.Orphans do
  @moduledoc """
  How long the clean-up after dead runs takes: the start of the application until their orphans are gone.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{DeadRuns, Turns}

  @sizes [10, 100, 1000, 3000]
  @rounds [rounds: 5, within_ms: 20_000]
  @orphans 100

  @impl true
  def run, do: Enum.map(@sizes, &cleaned_up/1) ++ dead_runs()

  defp cleaned_up(size) do
    rounds =
      Turns.repeat([label: "orphans of a dead run, #{size}"] ++ @rounds, fn _number ->
        {orphaned(size, fn directory, _ -> DeadRuns.start_ms(directory) end),
         orphaned(size, fn _, run_id -> pipeline(run_id) end)}
      end)

    row(
      name: "start after a crash with #{size} orphans, all gone, beside grep and kill",
      rounds: rounds,
      unit: "ms",
      scale: %{
        figure: "clean-up of a dead run",
        of: "orphans",
        size: size,
        beside: "grep /proc/*/environ, xargs kill"
      }
    )
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

  defp dead_runs do
    [five, ten] =
      for runs <- [5, 10] do
        progress("start after #{runs} dead runs of #{@orphans} orphans each")
        DeadRuns.with_dead_runs(runs, @orphans, fn path, _ids -> DeadRuns.start_ms(path) end)
      end

    [
      row(name: "start with 5 dead runs of #{@orphans} orphans", value: five, unit: "ms"),
      row(
        name: "start with 10 dead runs of #{@orphans} orphans, beside twice that with 5",
        value: ten,
        unit: "ms",
        baseline: 2 * five,
        target: {:ratio, 1.25}
      )
    ]
  end
end
