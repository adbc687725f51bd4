defmodule Snakepit.Auditor do
  @moduledoc """
  Compares what should be with what is, every `audit_interval_ms`: the registry with the process
  table, and the process table with the guardian.

  It mends what it finds: entries whose process is gone are forgotten, reservations that came to
  nothing too, and processes with this run's marks that are not below the guardian, where all of them
  belong, are ended. In normal operation it finds nothing.
  """

  use GenServer

  require Logger

  alias Snakepit.{Config, Run, Strays, Telemetry}
  alias Snakepit.Pool.ProcessRegistry

  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 2_000

  @type report :: %{
          orphans: non_neg_integer(),
          stale_entries: non_neg_integer(),
          duration_ms: non_neg_integer()
        }

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc """
  Looks now, and mends.

      iex> %{orphans: 0} = Snakepit.Auditor.audit()

  """
  @spec audit() :: report()
  def audit, do: GenServer.call(__MODULE__, :audit, 60_000)

  @impl true
  def init(_opts), do: {:ok, schedule(Config.fetch!())}

  @impl true
  def handle_call(:audit, _from, config), do: {:reply, look(), config}

  @impl true
  def handle_info(:audit, config) do
    look()
    {:noreply, schedule(config)}
  end

  defp look do
    begun = System.monotonic_time(:millisecond)
    run = Run.current!()
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
        Logger.warning("Snakepit ends processes that nobody looks after: #{os_pids}")
        counts = Strays.stop(run, 0, @kill_wait_ms)
        counts.stopped + counts.killed
    end
  end

  defp schedule(config) do
    Process.send_after(self(), :audit, config.audit_interval_ms)
    config
  end
end
