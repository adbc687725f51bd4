defmodule Snakepit.Reaper do
  @moduledoc false

  # Ends what earlier runs have left behind, before anything new may start.
  #
  # A run is dead exactly when its lock can be taken, and whoever has taken it is the only one who
  # reaps it. All dead runs are reaped by one look at the process table and in one grace period. A
  # ledger's word is a hint: the kernel says whether a process is the one that was noted.

  require Logger

  alias Snakepit.{DataDir, Error, History, LegacyLedger, Native, Run, Telemetry}
  alias Snakepit.Ledger.DeadRun

  # What a guardian may take on top of its grace period to kill and to write its obituary.
  @guardian_slack_ms 3_000
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000

  @doc "Reaps all dead runs of the data directory of `run`."
  @spec reap(Run.t(), map()) :: :ok
  def reap(run, config) do
    begun = now()
    LegacyLedger.retire(run.data_dir)
    {dead, spared} = take(run)
    {elsewhere, here} = Enum.split_with(dead, &(DeadRun.whereabouts(&1) != :here))
    await_guardians(here, config)
    reap_here(here, spared, run, config, begun)
    Enum.each(elsewhere, &close_elsewhere(&1, begun))
    History.prune(run.data_dir, config.history.keep)
  end

  # Those whose lock could be taken, and the ids of those that are someone else's business.
  defp take(run) do
    others = for {id, directory} <- DataDir.runs!(run.data_dir), id != run.id, do: {id, directory}

    Enum.reduce(others, {[], [run.id]}, fn {id, directory}, {dead, spared} ->
      case take_one(id, directory, run.instance) do
        %DeadRun{} = found -> {[found | dead], spared}
        :closed -> {dead, spared}
        :spared -> {dead, [id | spared]}
      end
    end)
  end

  defp take_one(id, directory, instance) do
    cond do
      History.closed?(directory) ->
        History.tidy_rest(directory)
        :closed

      # The run that this very BEAM descends from: to end that would be to end ourselves.
      id == System.get_env("SNAKEPIT_RUN_ID") ->
        :spared

      true ->
        lock(id, directory, instance)
    end
  end

  defp lock(id, directory, instance) do
    case Native.lock_take(Path.join(directory, "lock")) do
      {:ok, nil} ->
        :spared

      {:ok, lock} ->
        # Whoever had the lock a moment ago may have closed it.
        if History.closed?(directory) do
          Native.lock_release(lock)
          :closed
        else
          id |> DeadRun.read(directory, lock) |> unless_spared(instance)
        end

      # Removed meanwhile, or not ours to open.
      {:error, {reason, _os_pid}} ->
        DataDir.unreadable!(:reap, reason, :spared)
    end
  end

  defp unless_spared(dead, instance) do
    cond do
      # Somebody removed its lock under it.
      DeadRun.whereabouts(dead) == :running ->
        Logger.error("Snakepit: run #{dead.id} has lost its lock and is alive; it is left alone")
        spare(dead)

      # Of one who shares the directory and nothing else.
      match?(%{instance: other} when other != instance, dead.record) ->
        spare(dead)

      true ->
        dead
    end
  end

  defp spare(dead) do
    Native.lock_release(dead.lock)
    :spared
  end

  # A guardian that is still at it knows more than any ledger, and gives its workers the time that
  # they were promised. One that does not finish is ended.
  defp await_guardians(dead, config) do
    guardians = for %{guardian: guardian} when guardian != nil <- dead, do: guardian
    graces = for one <- dead, do: one.grace
    patience = Enum.max([config.watchdog.grace_period_ms | graces]) + @guardian_slack_ms

    with {:ok, [_ | _] = left} <- Native.process_await(guardians, patience) do
      identities = for {_os_pid, identity} <- left, do: identity
      Native.process_stop(identities, :sigkill, 0, @kill_wait_ms)
    end
  end

  defp reap_here(dead, spared, run, config, begun) do
    runs = for one <- dead, do: %{run_id: one.id, identities: DeadRun.identities(one)}
    grace = config.graceful_shutdown_timeout_ms

    case Native.run_reap(runs, run.instance, spared, grace, config.force_kill_timeout_ms) do
      {:ok, %{runs: reaped, strays: strays}} ->
        for {one, counts} <- Enum.zip(dead, reaped), do: close(one, counts, begun)
        report_strays(strays, begun)

      # Nothing is closed: the next start tries again.
      {:error, error} ->
        for one <- dead, do: Native.lock_release(one.lock)
        raise Error.from_native(:reap, error)
    end
  end

  defp close(dead, %{survivors: []} = counts, begun) do
    obituary = Native.obituary_read(dead.directory)

    if DeadRun.blank?(dead) and counts.found == 0 and obituary == nil do
      File.rm_rf(dead.directory)
    else
      {by, counts} = outcome(dead.record, obituary, counts)
      closed = Map.take(counts, [:found, :killed, :gone, :ambiguous])
      History.close(dead.directory, record(dead, obituary), by, closed)
      post_mortem(obituary)
      announce(dead.id, by, counts, begun)
    end

    Native.lock_release(dead.lock)
  end

  # Kept as it is: an entry goes away only when the death is confirmed.
  defp close(dead, %{survivors: survivors} = counts, begun) do
    os_pids = for {os_pid, _identity} <- survivors, do: os_pid
    Logger.error("Snakepit: processes of run #{dead.id} cannot be ended: #{Error.pids(os_pids)}")
    announce(dead.id, nil, counts, begun)
    Native.lock_release(dead.lock)
  end

  # It had ended in order, and only its record was not closed any more.
  defp outcome(%{state: :terminated, clean_shutdown: true}, _obituary, %{found: 0} = counts),
    do: {:clean_shutdown, Map.put(counts, :gone, 0)}

  # The guardian's own count, where it had finished and nothing was left to find.
  defp outcome(_record, %{survivors: []} = obituary, %{found: 0} = counts) do
    found = length(obituary.processes)
    killed = Enum.count(obituary.processes, & &1.killed)
    {:guardian, Map.merge(counts, %{found: found, killed: killed, gone: found})}
  end

  defp outcome(_record, _obituary, counts), do: {:cleanup, Map.put(counts, :gone, counts.found)}

  defp record(%{record: nil}, %{beam_pid: beam_pid}), do: %{beam_pid: beam_pid}
  defp record(dead, _obituary), do: dead.record

  defp close_elsewhere(dead, begun) do
    counts = %{found: 0, killed: 0, gone: 0, ambiguous: 0}
    History.close(dead.directory, dead.record, :reboot, counts)
    announce(dead.id, :reboot, counts, begun)
    Native.lock_release(dead.lock)
  end

  defp report_strays(%{found: 0}, _begun), do: :ok

  defp report_strays(strays, begun) do
    Logger.warning("Snakepit: ended #{strays.found} processes of runs without a ledger")
    announce(nil, :cleanup, strays, begun)
  end

  defp announce(run_id, by, counts, begun) do
    Telemetry.execute(
      [:snakepit, :run, :reaped],
      %{count: 1, duration_ms: now() - begun},
      %{
        run_id: run_id,
        terminated_by: by,
        found: counts.found,
        killed: counts.killed,
        ambiguous: counts.ambiguous
      }
    )
  end

  # What nobody was there to hear when it happened.
  defp post_mortem(nil), do: :ok

  defp post_mortem(obituary) do
    Telemetry.execute(
      [:snakepit, :watchdog, :beam_death_detected],
      %{count: 1, detection_time_ms: obituary.detected_at},
      %{run_id: obituary.run_id, beam_pid: obituary.beam_pid, post_mortem: true}
    )

    for process <- obituary.processes do
      Telemetry.execute(
        [:snakepit, :watchdog, :process_terminated],
        %{count: 1, termination_duration_ms: process.after_ms},
        %{
          worker_id: process.worker_id,
          method: if(process.killed, do: :sigkill, else: :sigterm),
          post_mortem: true
        }
      )
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
