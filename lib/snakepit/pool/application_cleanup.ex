defmodule Snakepit.Pool.ApplicationCleanup do
  @moduledoc """
  The shutdown barrier. When the application stops, this process ends only after every process of this run has, or
  after it has logged which ones are left.

  It does nothing while the application runs. When it stops, workers have usually ended already. All processes that are
  left get their stop signal at the same time. They get SIGKILL after their own `:stop_timeout`, or after
  `cleanup_on_stop_timeout_ms` if they have none. If a guardian was lost during the run, the whole process table is then
  searched for this run's markers.
  """

  # Its own deadlines end it. How long they are depends on what workers were promised.
  use GenServer, shutdown: :infinity

  require Logger

  alias Snakepit.{Config, Error, Guardian, Native, Run, RunState, Telemetry}
  alias Snakepit.Cleanup.{PreviousGuardian, Strays}
  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}
  alias Snakepit.Pool.ProcessRegistry.Table

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc false
  # Ends what there is of this run now, by guardian and by marker. Options: `:strict`, whether the time
  # holds also for those that have their own; and `:last`, whether nothing new can come, so that all that
  # has this run's marks may be ended.
  @spec run(non_neg_integer(), non_neg_integer(), keyword()) ::
          %{stopped: non_neg_integer(), killed: non_neg_integer(), survivors: [pos_integer()]}
  def run(timeout_ms, kill_wait_ms, opts \\ []) do
    opts = opts |> Keyword.validate!(strict: false, last: false) |> Map.new()
    run = Run.current!()
    begun = System.monotonic_time(:millisecond)
    all = ProcessRegistry.list_all_workers()
    workers = for {_id, %{status: :active} = info} <- all, do: info
    os_pids = Enum.map(workers, & &1.os_pid)
    emit(:start, begun, run, os_pids)
    guarded = by_guardian(run, workers, {timeout_ms, kill_wait_ms}, opts)
    report = add(guarded, beside_guardian(run, timeout_ms, kill_wait_ms))
    Table.await(&ProcessRegistry.cleanup_dead_workers/0)
    event = if report.survivors == [], do: :success, else: :timeout
    emit(event, begun, run, if(event == :timeout, do: report.survivors, else: os_pids))
    report
  end

  @impl true
  def init(_opts) do
    Process.flag(:trap_exit, true)
    {:ok, Config.current()}
  end

  @impl true
  def terminate(_reason, config) do
    # A sibling that crashes takes this process with it, and no worker.
    if config.cleanup_on_stop and RunState.current() == :shutting_down, do: barrier(config)
  end

  defp barrier(config) do
    report = run(config.cleanup_on_stop_timeout_ms, config.force_kill_timeout_ms, last: true)
    tell(report)

    PIDLedger.note_shutdown(%{
      found: report.stopped + report.killed + length(report.survivors),
      killed: report.killed,
      survivors: report.survivors,
      clean_shutdown: report.survivors == []
    })
  end

  # Nothing to say if nothing was there, or all of it went when asked.
  defp tell(%{killed: 0, survivors: []}), do: :ok

  defp tell(%{killed: killed, survivors: []}),
    do: Logger.warning("Snakepit had to kill #{killed} processes that did not end when asked")

  defp tell(%{survivors: survivors}),
    do: Logger.error("Snakepit cannot end these processes: #{Error.pids(survivors)}")

  defp by_guardian(run, workers, {timeout_ms, _kill_wait_ms} = times, opts) do
    server = Process.monitor(Guardian)
    answer = Guardian.stop_all(timeout: timeout_ms, strict: opts.strict)

    # It is gone, and so is what it was the parent of.
    report =
      case answer do
        {:ok, counts} -> Map.put(counts, :survivors, [])
        {:error, %Error{reason: :survivors} = error} -> none(error.os_pids)
        {:error, _down} -> unguarded(run, workers, times, opts, server)
      end

    Process.demonitor(server, [:flush])
    report
  end

  # A pass over the whole process table, for what a guardian that was lost has left behind. Where none was,
  # all that the run has started is below the one that has just answered.
  defp beside_guardian(run, timeout_ms, kill_wait_ms) do
    if PreviousGuardian.any?(run), do: Strays.stop(run, timeout_ms, kill_wait_ms), else: none([])
  end

  # All that has the marks of the run.
  defp unguarded(run, _workers, {timeout_ms, kill_wait_ms}, %{last: true}, _server),
    do: swept(Native.run_sweep(run.id, Strays.noted(run), timeout_ms, kill_wait_ms))

  # The marks are those of the next ones too, so only those that were known. What they have left behind
  # is swept up by the server before it ends.
  defp unguarded(_run, workers, {timeout_ms, kill_wait_ms}, _opts, server) do
    # It has answered as the last thing that it does but to sweep.
    receive(do: ({:DOWN, ^server, :process, _pid, _reason} -> :ok))
    identities = Enum.map(workers, & &1.identity)
    stopped(workers, Native.process_stop(identities, :sigterm, timeout_ms, kill_wait_ms))
  end

  # For tests, as below.
  @doc false
  def stopped(workers, {:ok, outcomes}) do
    counts = Enum.frequencies(outcomes)
    left = for {info, :survived} <- Enum.zip(workers, outcomes), do: info.os_pid
    stopped = Map.get(counts, :stopped, 0)
    %{stopped: stopped, killed: Map.get(counts, :killed, 0), survivors: left}
  end

  def stopped(workers, {:error, _reason}), do: none(Enum.map(workers, & &1.os_pid))

  # For tests: no process table is unreadable because one asks.
  @doc false
  def swept({:ok, report}),
    do: %{report | survivors: for({os_pid, _identity} <- report.survivors, do: os_pid)}

  def swept({:error, {reason, _os_pid}}) do
    Logger.error("Snakepit cannot read the process table: #{reason}")
    none([])
  end

  defp none(survivors), do: %{stopped: 0, killed: 0, survivors: survivors}

  defp add(one, other) do
    %{
      stopped: one.stopped + other.stopped,
      killed: one.killed + other.killed,
      survivors: Enum.uniq(one.survivors ++ other.survivors)
    }
  end

  defp emit(event, begun, run, os_pids) do
    Telemetry.execute(
      [:snakepit, :cleanup, event],
      %{count: 1, duration_ms: System.monotonic_time(:millisecond) - begun},
      %{run_id: run.id, os_pids: os_pids}
    )
  end
end
