defmodule Snakepit.Pool.ApplicationCleanup do
  @moduledoc """
  The barrier at the end: when the application stops, this returns when nothing of this run is left,
  or says what is.

  It is always started and does nothing while the application runs. Workers have ended by the time
  that it stops, and then all it does is look. What it finds gets SIGTERM, all at once, and SIGKILL
  after `cleanup_on_stop_timeout_ms`; then a look at the whole process table shows whether anything
  with this run's marks is still there.
  """

  # Its own deadlines end it; this is for those who wait for it.
  use GenServer, shutdown: 60_000

  require Logger

  alias Snakepit.{Config, Error, Guardian, Native, Run, RunState, Strays, Telemetry}
  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc false
  # Ends everything of this run, by guardian and by marker.
  @spec run(non_neg_integer(), non_neg_integer()) ::
          %{stopped: non_neg_integer(), killed: non_neg_integer(), survivors: [pos_integer()]}
  def run(timeout_ms, kill_wait_ms) do
    run = Run.current!()
    begun = System.monotonic_time(:millisecond)
    os_pids = ProcessRegistry.get_active_process_pids()
    emit(:start, begun, run, os_pids)
    guarded = by_guardian(run, timeout_ms, kill_wait_ms)
    report = add(guarded, Strays.stop(run, timeout_ms, kill_wait_ms))
    ProcessRegistry.cleanup_dead_workers()
    event = if report.survivors == [], do: :success, else: :timeout
    emit(event, begun, run, if(event == :timeout, do: report.survivors, else: os_pids))
    report
  end

  @impl true
  def init(_opts) do
    Process.flag(:trap_exit, true)
    {:ok, Config.fetch!()}
  end

  @impl true
  def terminate(_reason, config) do
    # A sibling that crashes takes this process with it, and no worker.
    if config.cleanup_on_stop and RunState.current() == :shutting_down, do: barrier(config)
  end

  defp barrier(config) do
    report = run(config.cleanup_on_stop_timeout_ms, config.force_kill_timeout_ms)
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

  defp by_guardian(run, timeout_ms, kill_wait_ms) do
    case Guardian.stop_all(timeout_ms: timeout_ms) do
      {:ok, counts} -> Map.put(counts, :survivors, [])
      {:error, %Error{reason: :survivors} = error} -> none(error.os_pids)
      # It is gone, and so is what it was the parent of. The rest is found by its marks.
      {:error, _down} -> swept(Native.run_sweep(run.id, timeout_ms, kill_wait_ms))
    end
  end

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
