defmodule Snakepit.Auditor do
  @moduledoc """
  Compares, every `audit_interval_ms`, the registry with the process table, and the process table with the
  guardian.

  It repairs what it finds. It deletes entries whose process is gone, and abandoned reservations. It kills processes with
  this run's markers that are not below the guardian, where all of them belong. In normal operation it finds nothing.

  Right after its start it searches for processes of earlier runs whose ledger was deleted.
  """

  use GenServer

  require Logger

  alias Snakepit.{Config, Run, Telemetry}
  alias Snakepit.Cleanup.{Reaper, Strays}
  alias Snakepit.Ledger.SignOfLife
  alias Snakepit.Pool.ProcessRegistry

  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 2_000
  # How often one BEAM looks for processes of runs without a ledger, however often it starts.
  @strays_interval_ms 10_000

  @type report :: %{
          orphans: non_neg_integer(),
          stale_entries: non_neg_integer(),
          duration_ms: non_neg_integer()
        }

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc """
  Compares now, repairs what it finds, and returns how much that was.

      iex> %{orphans: 0} = Snakepit.Auditor.audit()

  """
  @spec audit() :: report()
  def audit, do: GenServer.call(__MODULE__, :audit, 60_000)

  @impl true
  def init(_opts), do: {:ok, schedule(Config.current()), {:continue, :strays}}

  # Not before the start: it is a pass over the whole process table, for something that hardly ever is there.
  @impl true
  def handle_continue(:strays, config), do: {:noreply, end_strays_of_others(config)}

  @impl true
  def handle_call(:audit, _from, config), do: {:reply, look(), config}

  @impl true
  def handle_info(:audit, config) do
    look()
    {:noreply, schedule(config)}
  end

  def handle_info(:strays, config), do: {:noreply, end_strays_of_others(config)}

  # An application that is started again and again would have its BEAM do nothing else.
  defp end_strays_of_others(config) do
    run = Run.current!()
    key = {__MODULE__, run.instance}
    now = System.monotonic_time(:millisecond)

    case :persistent_term.get(key, nil) do
      last when last == nil or now - last >= @strays_interval_ms ->
        :persistent_term.put(key, now)
        Reaper.end_strays(run, config)

      last ->
        Process.send_after(self(), :strays, last + @strays_interval_ms, abs: true)
    end

    config
  rescue
    # The process table or the data directory cannot be read now. The next start looks again.
    error ->
      Logger.error(
        "Snakepit cannot look for earlier runs' processes: #{Exception.message(error)}"
      )

      config
  end

  defp look do
    begun = System.monotonic_time(:millisecond)
    run = Run.current!()
    SignOfLife.give(run)
    orphans = end_strays(run)
    stale = ProcessRegistry.cleanup_dead_workers() + ProcessRegistry.sweep_reservations()
    duration = System.monotonic_time(:millisecond) - begun
    report = %{orphans: orphans, stale_entries: stale, duration_ms: duration}

    Telemetry.execute([:snakepit, :audit, :completed], Map.put(report, :count, 1), %{
      run_id: run.id
    })

    report
  end

  defp end_strays(run) do
    case Strays.find(run) do
      [] ->
        0

      strays ->
        os_pids = Enum.map_join(strays, ", ", &elem(&1, 0))

        Logger.warning(
          "Snakepit kills processes of this run that are not below its guardian: #{os_pids}"
        )

        counts = Strays.stop(run, 0, @kill_wait_ms)
        counts.stopped + counts.killed
    end
  end

  defp schedule(config) do
    Process.send_after(self(), :audit, config.audit_interval_ms)
    config
  end
end
