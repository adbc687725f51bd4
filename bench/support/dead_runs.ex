defmodule Snakepit.Bench.DeadRuns do
  @moduledoc """
  Runs whose guardian and BEAM died at one instant: their workers die with the guardian, what those
  had started does not.
  """

  alias Snakepit.{Native, ProcessKiller}
  alias Snakepit.Bench.SecondBeam
  alias Snakepit.Test.BeamPort

  @patience_ms 60_000
  @workers 100
  @script ~S"for one in $(seq $1); do setsid sleep 120 & done; wait"

  @doc """
  Makes that many, with that many orphans each, in a directory of their own. A hundred workers have
  started them, or fewer if there are fewer, so that making them does not take longer than ending them.

  Runs `fun` with the directory and the run ids, and makes sure that no orphan is left then. Whatever
  fails, nothing is left behind.
  """
  @spec with_dead_runs(non_neg_integer(), pos_integer(), (Path.t(), [String.t()] -> value)) ::
          value
        when value: term()
  def with_dead_runs(runs, orphans, fun) do
    Snakepit.Bench.with_directory(fn directory ->
      beams = for _run <- 1..runs//1, do: BeamPort.open(data_dir: directory)

      try do
        run_ids = kill_all(Enum.map(beams, &fill(&1, orphans)))
        value = fun.(directory, run_ids)
        left = for run_id <- run_ids, do: members(run_id)
        if Enum.sum(left) > 0, do: raise("orphans are left: #{inspect(left)}")
        value
      after
        for beam <- beams, Port.info(beam), do: SecondBeam.stop(beam)

        for run_id <- File.ls!(directory) -- ["instance"],
            do: {:ok, _count} = ProcessKiller.kill_by_run_id(run_id)
      end
    end)
  end

  defp fill(beam, orphans) do
    :started = BeamPort.value(beam)
    workers = min(orphans, @workers)
    # As many for each of them.
    0 = rem(orphans, workers)
    command = ["sh", "-c", @script, "sh", "#{div(orphans, workers)}"]

    BeamPort.tell(beam, """
    command = Snakepit.Command.new!(cmd: #{inspect(command)})
    for number <- 1..#{workers} do
      id = "w\#{number}"
      :ok = Snakepit.Pool.ProcessRegistry.reserve_worker(id)
      {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: id)
      :ok = Snakepit.Pool.ProcessRegistry.activate_worker(id, self(), child.os_pid, child.identity)
      :ok = Snakepit.Guardian.release(child)
    end
    {Snakepit.run_id(), Snakepit.Guardian.os_pid()}
    """)

    {run_id, guardian} = BeamPort.value(beam)
    {:os_pid, os_pid} = Port.info(beam, :os_pid)
    await_members(run_id, workers + orphans)
    %{beam: beam, os_pid: os_pid, guardian: guardian, run_id: run_id, orphans: orphans}
  end

  defp kill_all(doomed) do
    # A guardian that is stopped does nothing about the death of its BEAM.
    for %{guardian: guardian} <- doomed, do: signal(guardian, "STOP")

    for %{beam: beam, os_pid: os_pid, guardian: guardian} <- doomed do
      for one <- [os_pid, guardian], do: signal(one, "KILL")
      SecondBeam.await_end(beam)
    end

    for %{run_id: run_id, orphans: orphans} <- doomed do
      await_members(run_id, orphans)
      run_id
    end
  end

  @doc "Waits until that many processes carry the marks of the run."
  @spec await_members(String.t(), non_neg_integer()) :: :ok
  def await_members(run_id, count),
    do: await_members(run_id, count, System.monotonic_time(:millisecond) + @patience_ms)

  defp await_members(run_id, count, deadline) do
    found = members(run_id)

    cond do
      found == count ->
        :ok

      System.monotonic_time(:millisecond) > deadline ->
        raise "expected #{count} processes of #{run_id}, got: #{found}"

      true ->
        Process.sleep(10)
        await_members(run_id, count, deadline)
    end
  end

  # Markers only: children at the gate carry a lineage, and no marker yet.
  defp members(run_id) do
    {:ok, members} = Native.run_members(run_id)
    Enum.count(members, &(&1.worker_id != nil))
  end

  @doc "Starts the application on that directory in a new BEAM, and stops it. Gives the start's ms."
  @spec start_ms(Path.t()) :: float()
  def start_ms(directory) do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(directory)})
    {us, {:ok, _}} = :timer.tc(fn -> Application.ensure_all_started(:snakepit) end)
    IO.puts("started \#{us}")
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    {output, 0} = System.cmd("elixir", ["-pa", ebin, "-e", code], stderr_to_stdout: true)
    [_, us] = Regex.run(~r/started (\d+)/, output)
    String.to_integer(us) / 1000
  end

  defp signal(os_pid, name) do
    {_output, 0} = System.cmd("kill", ["-#{name}", "#{os_pid}"])
    :ok
  end
end
