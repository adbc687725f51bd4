defmodule Snakepit.Bench.Basics do
  @moduledoc """
  What single operations cost, beside the external command that does about the same.

  A pass over the process table is to take ten times as long with ten times the processes, not more
  (but for caches, which hold a few processes and not many).
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.Herd
  alias Snakepit.{OSProcess, ProcessKiller, RunID}

  @few 300
  @many 3000
  @rounds 5

  @impl true
  def run, do: [run_id() | Herd.with_herd([{1, nil}], &on_one/1)] ++ table_passes()

  defp run_id do
    progress("run id")
    row(name: "run id", value: time(1000, [batch: 100], &RunID.generate/0).p50, unit: "µs")
  end

  defp on_one(herd) do
    [os_pid] = Herd.living(herd)
    pid = Integer.to_string(os_pid)
    {:ok, process} = OSProcess.lookup(os_pid)

    progress("identity look-up")
    lookup = time(1000, [batch: 10], fn -> {:ok, _process} = OSProcess.lookup(os_pid) end)
    ps = time(100, fn -> {_start, 0} = System.cmd("ps", ["-p", pid, "-o", "lstart="]) end)

    progress("signal")

    signal =
      time(1000, [batch: 10], fn -> :ok = ProcessKiller.kill_process(process, :sigcont) end)

    kill = time(100, fn -> {"", 0} = System.cmd("kill", ["-CONT", pid]) end)

    [
      row(
        name: "identity look-up, beside ps -p",
        value: lookup.p50,
        unit: "µs",
        baseline: ps.p50
      ),
      row(name: "signal, beside kill -CONT", value: signal.p50, unit: "µs", baseline: kill.p50)
    ]
  end

  defp table_passes do
    rounds = for round <- 1..@rounds, do: table_round(round, RunID.generate())
    [few, many, growth] = for key <- [:few, :many, :growth], do: medians(rounds, key)

    [
      pass_row(@few, few),
      pass_row(@many, many),
      row(
        name: "table pass, time per process at #{@many} to that at #{@few}, beside ps -e",
        value: growth.pass,
        unit: "times",
        baseline: growth.ps,
        target: {:value, 1.3}
      )
    ]
  end

  # Few and many right after each other, round by round, and in samples that take about as long: what
  # else the machine does then bears on both alike.
  defp table_round(round, nobody) do
    progress("table pass, round #{round} of #{@rounds}")
    idle = table_pass(nobody, div(@many, @few))

    Herd.with_herd([{@few, nil}], fn _herd ->
      few = table_pass(nobody, div(@many, @few))
      many = Herd.with_herd([{@many - @few, nil}], fn _herd -> table_pass(nobody, 1) end)

      # What was there before costs something too, and less each: many are kernel threads.
      growth = fn way -> (many[way] - idle[way]) / @many / ((few[way] - idle[way]) / @few) end
      %{few: few, many: many, growth: %{pass: growth.(:pass), ps: growth.(:ps)}}
    end)
  end

  defp table_pass(nobody, batch) do
    pass = fn -> {:ok, []} = ProcessKiller.find_by_run_id(nobody) end
    ps = fn -> {_list, 0} = System.cmd("ps", ["-eo", "pid,args"]) end
    %{pass: time(20, [batch: batch], pass).p50, ps: time(3, [batch: batch], ps).p50}
  end

  defp medians(rounds, key) do
    Map.new([:pass, :ps], fn way -> {way, percentile(Enum.map(rounds, & &1[key][way]), 50)} end)
  end

  defp pass_row(count, us) do
    name = "table pass, #{count} processes more, beside ps -e"
    row(name: name, value: us.pass / 1000, unit: "ms", baseline: us.ps / 1000)
  end
end
