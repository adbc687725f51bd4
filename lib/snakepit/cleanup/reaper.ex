defmodule Snakepit.Cleanup.Reaper do
  @moduledoc false

  # Ends what earlier runs have left behind, before anything new may start.
  #
  # A run is dead when its lock can be taken and nothing speaks against it. The start that has taken the lock
  # is the only one that reaps that run. All dead runs are reaped in one pass over the process table and one
  # grace period. A ledger's record is a hint: the kernel says whether a process is the recorded one. Runs of
  # another place are left for a start in that place.
  #
  # Mostly there are no dead runs. Then only processes that have lost their ledger could be found, by their
  # markers. A start does not wait for that pass over the process table: `Snakepit.Auditor` makes it later.

  require Logger

  alias Snakepit.{DataDir, Error, Native, Run, Telemetry}
  alias Snakepit.Ledger.{DeadRun, History, Legacy, RunDirectory, SignOfLife}

  # What a guardian may take on top of its grace period to kill and to write its obituary.
  @guardian_slack_ms 3_000
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000
  # Runs of other places: for how long one is kept of which nothing is heard, how many at most, and after
  # how long one beyond them counts as dead where its lock does not tell.
  @forgotten_s 7 * 86_400
  @most_elsewhere 100
  @silent_s 86_400

  @doc "Reaps all dead runs of the data directory of `run`."
  @spec reap(Run.t(), map()) :: :ok
  def reap(run, config) do
    begun = now()
    Legacy.retire(run.data_dir)
    others = for {id, _, _} = listed <- DataDir.runs!(run.data_dir), id != run.id, do: listed
    {dead, spared} = take(others, run)
    places = Enum.group_by(dead, & &1.place)
    # A directory without a single run is new, or has lost what was recorded there.
    if others == [], do: end_strays(run, config)

    with [_ | _] = here <- Map.get(places, :here, []) do
      stuck = await_guardians(here, config)
      reap_here(here, stuck, spared, run, config, begun)
    end

    for one <- Map.get(places, :other_boot, []), do: close_unseen(one, :reboot, begun)
    leave_elsewhere(places, run, begun)
    if dead != [], do: History.prune(run.data_dir, config.history.keep)
    :ok
  end

  @doc "Ends processes of this instance whose run has no ledger any more, and whose BEAM is gone."
  @spec end_strays(Run.t(), map()) :: :ok
  def end_strays(run, config) do
    begun = now()
    open = for {id, _directory, _files} <- DataDir.open_runs!(run.data_dir), do: id

    case run_reap([], Enum.uniq([run.id | open]), run, config) do
      {:ok, %{strays: strays}} -> report_strays(strays, begun)
      {:error, error} -> raise Error.from_native(:reap, error)
    end
  end

  # Those whose lock could be taken, and the ids of those that are someone else's business.
  defp take(others, run) do
    Enum.reduce(others, {[], [run.id]}, fn {id, directory, files}, {dead, spared} ->
      case take_one(id, directory, files, run.instance) do
        %DeadRun{} = found -> {[found | dead], spared}
        :closed -> {dead, spared}
        :spared -> {dead, [id | spared]}
      end
    end)
  end

  defp take_one(id, directory, files, instance) do
    cond do
      RunDirectory.closed?(files) ->
        # The start that closed it may have been killed before it removed the files.
        RunDirectory.tidy(directory, files)
        :closed

      # The run that this very BEAM descends from: to end that would be to end ourselves.
      id == System.get_env("SNAKEPIT_RUN_ID") ->
        :spared

      true ->
        lock(id, directory, instance)
    end
  end

  defp lock(id, directory, instance) do
    case Native.lock_take(RunDirectory.lock(directory)) do
      {:ok, nil} ->
        :spared

      {:ok, lock} ->
        # The previous holder of the lock may have closed it.
        if closed_meanwhile?(directory) do
          Native.lock_release(lock)
          :closed
        else
          dead = DeadRun.read(id, directory, lock)
          unless_spared(%{dead | place: DeadRun.whereabouts(dead)}, instance)
        end

      # Removed meanwhile, or not ours to open.
      {:error, {reason, _os_pid}} ->
        DataDir.unreadable!(:reap, reason, :spared)
    end
  end

  # Raises if that cannot be told now: it must not be closed twice.
  defp closed_meanwhile?(directory) do
    case Native.directory_list(directory) do
      {:ok, files} -> RunDirectory.closed?(files)
      {:error, {reason, _os_pid}} -> DataDir.unreadable!(:reap, reason, false)
    end
  end

  defp unless_spared(dead, instance) do
    cond do
      # The lock of a living run was removed.
      dead.place == :running ->
        Logger.error(
          "Snakepit: the lock of run #{dead.id} was removed, but its BEAM is alive; the run is left alone"
        )

        spare(dead)

      # Another instance shares the directory.
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

  # A guardian that is still ending processes knows more than any ledger, and gives its workers their grace period. One
  # that does not finish is killed. Returns the ids of the runs whose guardian cannot be killed.
  defp await_guardians(dead, config) do
    guardians = for one <- dead, guardian = DeadRun.living_guardian(one), do: {guardian, one.id}
    graces = for one <- dead, do: one.grace
    patience = Enum.max([config.watchdog.grace_period_ms | graces]) + @guardian_slack_ms

    left = await(for({guardian, _id} <- guardians, do: guardian), patience)
    identities = for {_os_pid, identity} <- left, do: identity
    outcomes = kill(identities)

    for {identity, outcome} <- Enum.zip(identities, outcomes),
        outcome not in [:killed, :stopped, :gone],
        {^identity, id} <- guardians,
        do: id
  end

  defp kill(identities) do
    case Native.process_stop(identities, :sigkill, 0, @kill_wait_ms) do
      {:ok, outcomes} -> outcomes
      {:error, error} -> raise Error.from_native(:reap, error)
    end
  end

  defp await(identities, patience) do
    case Native.process_await(identities, patience) do
      {:ok, left} -> left
      {:error, error} -> raise Error.from_native(:reap, error)
    end
  end

  defp reap_here(dead, stuck, spared, run, config, begun) do
    runs = for one <- dead, do: %{run_id: one.id, identities: DeadRun.identities(one)}

    case run_reap(runs, spared, run, config) do
      {:ok, %{runs: reaped, strays: strays}} ->
        for {one, counts} <- Enum.zip(dead, reaped),
            do: close(one, Map.put(counts, :stuck, one.id in stuck), begun)

        report_strays(strays, begun)

      # Nothing is closed: the next start tries again.
      {:error, error} ->
        for one <- dead, do: Native.lock_release(one.lock)
        raise Error.from_native(:reap, error)
    end
  end

  defp run_reap(runs, spared, run, config) do
    %{graceful_shutdown_timeout_ms: grace_ms, force_kill_timeout_ms: kill_wait_ms} = config
    Native.run_reap(runs, run.instance, spared, grace_ms, kill_wait_ms)
  end

  defp close(dead, %{survivors: [], doubtful: [], stuck: false} = counts, begun) do
    obituary = Native.obituary_read(dead.directory)

    if DeadRun.blank?(dead) and counts.found == 0 and obituary == nil do
      File.rm_rf(dead.directory)
    else
      # Order: before the run is closed. Whoever reads its history finds it whole.
      leave_word(dead, obituary, counts, begun)
      {by, counts} = outcome(dead.record, obituary, counts)
      close_history(dead, obituary, by, counts)
      post_mortem(obituary)
      announce(dead.id, by, counts, begun)
    end

    Native.lock_release(dead.lock)
  end

  # Kept as it is: an entry goes away only when the death is confirmed.
  defp close(dead, counts, begun) do
    Logger.error(
      "Snakepit cannot close run #{dead.id}: #{Enum.join(why_kept(counts), "; ")}; the next start tries again"
    )

    announce(dead.id, nil, counts, begun)
    Native.lock_release(dead.lock)
  end

  defp why_kept(counts) do
    left = for {os_pid, _identity} <- counts.survivors, do: os_pid
    doubtful = for {os_pid, _identity} <- counts.doubtful, do: os_pid

    [
      {left != [], "these processes cannot be ended: #{Error.pids(left)}"},
      {doubtful != [], "these pids may be other processes by now: #{Error.pids(doubtful)}"},
      {counts.stuck, "its guardian cannot be ended"}
    ]
    |> Enum.filter(&elem(&1, 0))
    |> Enum.map(&elem(&1, 1))
  end

  # How each process has ended, for the history: no guardian was left to say it. If that fails, the counts are there.
  # What the ledger says may be anything.
  defp leave_word(_dead, _obituary, %{ended: []}, _begun), do: :ok

  defp leave_word(dead, obituary, %{ended: ended}, begun) do
    workers = for %{os_pid: os_pid, worker_id: id} <- dead.workers, into: %{}, do: {os_pid, id}

    Native.obituary_add(dead.directory, %{
      run_id: dead.id,
      beam_pid: number((dead.record || %{})[:beam_pid]),
      last_heard_at: number(DeadRun.ended_at(dead, obituary)),
      reaped_at: System.os_time(:millisecond),
      duration_ms: now() - begun,
      processes: for({os_pid, killed?} <- ended, do: {text(workers[os_pid]), os_pid, killed?}),
      survivors: []
    })
  end

  defp number(value) when is_integer(value) and value in 0..0x7FFFFFFFFFFFFFFF, do: value
  defp number(_damaged), do: 0

  defp text(value), do: if(is_binary(value) and String.valid?(value), do: value, else: "")

  # It had ended in order, and only its record was not closed any more.
  defp outcome(%{state: :terminated, clean_shutdown: true}, _obituary, %{found: 0} = counts),
    do: {:clean_shutdown, Map.put(counts, :gone, 0)}

  # The guardian's own count, or that of the command `reap`, where it had finished and nothing was left to find.
  defp outcome(_record, %{survivors: []} = obituary, %{found: 0} = counts) do
    found = length(obituary.processes)
    killed = Enum.count(obituary.processes, & &1.killed)
    by = if by_reap?(obituary), do: :cleanup, else: :guardian
    {by, Map.merge(counts, %{found: found, killed: killed, gone: found})}
  end

  defp outcome(_record, _obituary, counts), do: {:cleanup, Map.put(counts, :gone, counts.found)}

  defp close_history(dead, obituary, by, counts) do
    ending =
      counts
      |> Map.take([:found, :killed, :gone, :ambiguous])
      |> Map.merge(%{terminated_by: by, ended_at: DeadRun.ended_at(dead, obituary)})
      |> Map.merge(History.usage(obituary))

    History.close(dead.directory, record(dead, obituary), ending)
  end

  defp record(%{record: nil}, %{beam_pid: beam_pid}), do: %{beam_pid: beam_pid}
  defp record(dead, _obituary), do: dead.record

  # They are for a start in their own place. Those that are too old or too many are closed.
  defp leave_elsewhere(places, run, begun) do
    runs =
      for place <- [:other_container, :elsewhere],
          one <- Map.get(places, place, []),
          do: {SignOfLife.age_s(one.directory, run) || 0, place, one}

    for {{age_s, place, one}, index} <- runs |> Enum.sort_by(&elem(&1, 0)) |> Enum.with_index() do
      if expired?(place, one.record, age_s, index),
        do: close_unseen(one, :elsewhere, begun),
        else: spare(one)
    end
  end

  # If the first process of a pid namespace ends, the kernel ends all others in it. The BEAM of a run in another
  # container is dead, because its lock could be taken: locks are the same kernel's.
  defp expired?(:other_container, %{beam_pid: 1}, _age_s, _index), do: true
  defp expired?(_place, _record, age_s, _index) when age_s > @forgotten_s, do: true
  defp expired?(:other_container, _record, _age_s, index), do: index >= @most_elsewhere
  defp expired?(_place, _, age_s, index), do: index >= @most_elsewhere and age_s > @silent_s

  # Nobody here could have seen anything of it.
  defp close_unseen(dead, by, begun) do
    counts = %{found: 0, killed: 0, gone: 0, ambiguous: 0}
    close_history(dead, nil, by, counts)
    announce(dead.id, by, counts, begun)
    Native.lock_release(dead.lock)
  end

  defp report_strays(%{found: 0}, _begun), do: :ok

  defp report_strays(strays, begun) do
    Logger.warning("Snakepit ended #{strays.found} processes of runs whose ledger was deleted")
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

  # Events that happened when there was no BEAM to emit them.
  defp post_mortem(nil), do: :ok

  defp post_mortem(obituary), do: unless(by_reap?(obituary), do: watchdog_acted(obituary))

  # A start or the command `reap` has ended what was left: no guardian has seen the BEAM die.
  defp by_reap?(%{detected_by: by}), do: by == "reap"

  defp watchdog_acted(obituary) do
    Telemetry.execute(
      [:snakepit, :watchdog, :beam_death_detected],
      %{count: 1, detection_time_ms: obituary.detected_at},
      %{run_id: obituary.run_id, beam_pid: obituary.beam_pid, post_mortem: true}
    )

    for process <- obituary.processes do
      Telemetry.execute(
        [:snakepit, :watchdog, :process_terminated],
        Map.merge(%{count: 1, termination_duration_ms: process.after_ms}, process.usage),
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
