defmodule Snakepit.Bench.DeadRunsTest do
  use ExUnit.Case, async: true

  @moduletag :long

  alias Snakepit.Bench.DeadRuns
  alias Snakepit.Test.ProcScan

  @orphans 3

  test "orphans are there, and neither they nor their directory are left, whatever happens" do
    bench = self()

    assert_raise RuntimeError, "on purpose", fn ->
      DeadRuns.with_dead_runs(1, @orphans, fn directory, [run_id] ->
        send(bench, {:made, directory, run_id, marked(run_id)})
        raise "on purpose"
      end)
    end

    assert_received {:made, directory, run_id, orphans}
    assert length(orphans) == @orphans
    assert marked(run_id) == []
    refute File.exists?(directory)
  end

  test "the start of the application ends them" do
    assert DeadRuns.with_dead_runs(1, @orphans, fn directory, [run_id] ->
             ms = DeadRuns.start_ms(directory)
             assert marked(run_id) == []
             ms
           end) > 0
  end

  test "whoever does not end them is told" do
    assert_raise RuntimeError, "orphans are left: [#{@orphans}]", fn ->
      DeadRuns.with_dead_runs(1, @orphans, fn _directory, _run_ids -> :nothing end)
    end
  end

  defp marked(run_id), do: ProcScan.with_variable("SNAKEPIT_RUN_ID", run_id, ~w(sh setsid sleep))
end
