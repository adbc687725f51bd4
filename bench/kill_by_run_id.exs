defmodule Snakepit.Bench.KillByRunID do
  @moduledoc """
  Finds and ends 1000 processes of a run among 3000 others, of which half belong to other runs.

  The baselines are what Snakepit's predecessor did: list the processes with `ps | grep | awk`, look
  at the command line of each, and call `kill` for each that has the run id. It took the command
  line from `/proc` and, where there is none, from `ps`.

  Some versions of `ps` read the whole process table when asked for one process, and then that
  baseline takes a quarter of an hour. So a baseline is given up when it has taken a hundred times
  as long as Snakepit: then it and the ratio are lower bounds, and the row says so.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.Herd
  alias Snakepit.{ProcessKiller, RunID}

  @targets 1000
  @others 3000
  @rounds 5
  @enough 100

  @impl true
  def run do
    runs = for _run <- 1..3, do: {div(@others, 6), RunID.generate()}

    Herd.with_herd([{div(@others, 2), nil} | runs], fn others ->
      native = for _round <- 1..@rounds, do: round("Snakepit", others, &native/2)
      us = percentile(for({us, :done} <- native, do: us), 50)
      shell = fn command -> &shell(&1, &2, command, us * @enough) end
      proc = round("ps, /proc and kill", others, shell.(&proc_command/1))
      ps = round("ps, ps -p and kill", others, shell.(&ps_command/1))

      [
        beside("ps, ps -p and kill", us, ps, {:ratio, 0.02}),
        beside("ps, /proc and kill", us, proc, nil)
      ]
    end)
  end

  defp beside(label, us, {baseline_us, outcome}, target) do
    row(
      name: "#{@targets} of #{@targets + @others}, beside #{label}#{note(outcome)}",
      value: us / 1000,
      unit: "ms",
      baseline: baseline_us / 1000,
      target: target
    )
  end

  defp note(:done), do: ""
  defp note(:given_up), do: " (given up)"

  # One measurement, with 1000 new processes. Makes sure that they have ended, and no other.
  defp round(label, others, kill) do
    run_id = RunID.generate()

    Herd.with_herd([{@targets, run_id}], fn targets ->
      bystanders = Herd.living(others)
      @others = length(bystanders)
      {us, outcome} = kill.(run_id, targets)
      if outcome == :done, do: [] = Herd.living(targets)
      ^bystanders = Herd.living(others)
      progress("#{label}: #{round(us / 1000)} ms#{note(outcome)}")
      {us, outcome}
    end)
  end

  defp native(run_id, _targets) do
    {us, {:ok, @targets}} = once(fn -> ProcessKiller.kill_by_run_id(run_id) end)
    {us, :done}
  end

  defp shell(run_id, targets, command, limit_us) do
    deadline = System.monotonic_time(:microsecond) + limit_us
    {us, outcome} = once(fn -> pipeline(run_id, command, deadline) end)

    # `kill` does not wait for what it signals to die. That is quicker than this look at it, and the
    # look is not counted.
    if outcome == :done, do: Herd.await(targets, 0)
    {us, outcome}
  end

  defp pipeline(run_id, command, deadline) do
    {list, 0} = System.cmd("sh", ["-c", "ps -eo pid,comm | grep -w sh | awk '{print $1}'"])

    found =
      Enum.filter(String.split(list), fn pid ->
        if System.monotonic_time(:microsecond) > deadline, do: throw(:given_up)
        String.contains?(command.(pid), "--run-id #{run_id}")
      end)

    for pid <- found, do: {"", 0} = System.cmd("kill", [pid])
    :done
  catch
    :given_up -> :given_up
  end

  defp ps_command(pid), do: elem(System.cmd("ps", ["-p", pid, "-o", "args="]), 0)

  defp proc_command(pid) do
    case File.read("/proc/#{pid}/cmdline") do
      {:ok, arguments} -> String.replace(arguments, <<0>>, " ")
      {:error, _gone} -> ""
    end
  end
end
