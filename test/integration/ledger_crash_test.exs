defmodule Snakepit.LedgerCrashTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long

  # All fifty with SNAKEPIT_LONG=1, which takes as many times longer.
  @all? System.get_env("SNAKEPIT_LONG") != nil
  @rounds if @all?, do: 50, else: 5
  @moduletag timeout: if(@all?, do: 900_000, else: 120_000)
  @workers 100

  # Nobody is left to clean up: the guardian dies with its BEAM. What the kernel kills by itself are
  # direct children; the daemon has no environment and no parent, the other child its own session.
  defp worker(token) do
    sleep = "sleep #{token}"
    ["sh", "-c", "(env -i setsid #{sleep} &) ; setsid #{sleep} & #{sleep} & exec #{sleep}"]
  end

  defp storm(token, steps) do
    """
    guardian = Snakepit.Guardian.os_pid()
    strike = fn -> System.cmd("kill", ["-KILL", "\#{guardian}", System.pid()]) end
    Snakepit.Test.Workers.storm(#{@workers}, #{steps}, #{inspect(worker(token))}, strike)
    """
  end

  test "BEAM and guardian killed at one instant, in the midst of everything: the next start leaves nothing" do
    seed = ExUnit.configuration()[:seed]
    :rand.seed(:exsss, {seed, 4, 0})
    bystanders = Family.bystanders()
    data_dir = Beam.temporary_directory()
    config = [data_dir: data_dir, graceful_shutdown_timeout_ms: 200]

    {last, runs} =
      Enum.reduce(1..@rounds, {nil, []}, fn round, {before, runs} ->
        steps = :rand.uniform(500)
        context = "seed #{seed}, round #{round}, killed after #{steps} steps"
        beam = Beam.start(config)
        # At once: nothing may start before the dead are buried.
        if before, do: assert(Family.members(before) == [], context)
        assert Enum.all?(bystanders, &ProcScan.running?/1), context
        run_id = Beam.run(beam, "Snakepit.run_id()")
        token = Family.token()
        Beam.tell(beam, storm(token, steps))
        Beam.await_end(beam, 60_000)
        {token, [run_id | runs]}
      end)

    beam = Beam.start(config)
    assert Family.members(last) == []
    assert Enum.all?(bystanders, &ProcScan.running?/1)

    # Each of them is history, closed by the one after it, and its files are gone.
    history = Beam.run(beam, "Snakepit.RunState.history()")
    assert for(%{terminated_by: :cleanup, run_id: id} <- history, do: id) == runs
    for id <- runs, do: assert(closed_files(Path.join(data_dir, id)) == [])
  end

  defp closed_files(directory),
    do: File.ls!(directory) -- ["history", "lock", "obituary", "guardian.log"]
end
