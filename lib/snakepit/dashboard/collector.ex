defmodule Snakepit.Dashboard.Collector do
  @moduledoc false

  # Looks at all workers: what they use, whether they answer, and what pools say of themselves. It looks when somebody
  # asks and the last look is a second old, so any number of browsers cost as much as one; and every ten seconds
  # otherwise, so that there is a past to show. Each look is encoded once.

  use GenServer

  alias Snakepit.Dashboard.{Detail, Overview, Series}
  alias Snakepit.{HeartbeatMonitor, JSON, RunState}
  alias Snakepit.Metrics.{Pools, Usage}
  alias Snakepit.Pool.ProcessRegistry

  # A browser that asks every second must not come a moment too early each time.
  @fresh_ms 900
  @unwatched_ms 10_000
  @answer_ms 60_000
  # How much of the past comes with the first look of a browser, for each worker.
  @row_points 40
  @nothing %{workers: [], reserved: [], pools: [], pool_of: %{}, healths: %{}}

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Returns the state of everything as JSON; with `past`, also the last points of each worker."
  @spec overview(boolean()) :: binary()
  def overview(past), do: GenServer.call(__MODULE__, {:overview, past}, @answer_ms)

  @doc "Returns the points of a worker."
  @spec points(String.t()) :: [nonempty_list()]
  def points(id), do: GenServer.call(__MODULE__, {:points, id}, @answer_ms)

  @impl true
  def init(_opts) do
    state = %{
      at: nil,
      looked: nil,
      encoded: nil,
      workers: %{},
      total: %Series{},
      beam: %Series{},
      guardian: %Series{},
      pools: []
    }

    {:ok, look(state), {:continue, :wait}}
  end

  @impl true
  def handle_continue(:wait, state) do
    Process.send_after(self(), :look, @unwatched_ms)
    {:noreply, state}
  end

  @impl true
  def handle_call({:overview, past}, _from, state) do
    state = if now() - state.looked >= @fresh_ms, do: look(state), else: state
    {answer, state} = encode(state, past)
    {:reply, answer, state}
  end

  def handle_call({:points, id}, _from, state) do
    points =
      case state.workers do
        %{^id => worker} -> Series.points(worker.series)
        _unknown -> []
      end

    {:reply, points, state}
  end

  @impl true
  def handle_info(:look, state) do
    state = if now() - state.looked >= @unwatched_ms, do: look(state), else: state
    {:noreply, state, {:continue, :wait}}
  end

  def handle_info(_stray, state), do: {:noreply, state}

  # Whoever comes within the same second gets the same bytes.
  defp encode(%{encoded: nil} = state, false) do
    encoded = state |> overview_map(0) |> JSON.encode() |> IO.iodata_to_binary()
    {encoded, %{state | encoded: encoded}}
  end

  defp encode(state, false), do: {state.encoded, state}

  defp encode(state, true),
    do: {state |> overview_map(@row_points) |> JSON.encode() |> IO.iodata_to_binary(), state}

  defp overview_map(state, past) do
    rows =
      for {_id, worker} <- state.workers do
        if past > 0,
          do: Map.put(worker.row, :series, Series.points(worker.series, past)),
          else: worker.row
      end

    Overview.build(%{
      at: state.at,
      rows: Enum.sort_by(rows, & &1.id),
      pools: state.pools,
      total: state.total,
      beam: state.beam,
      guardian: state.guardian
    })
  end

  defp look(state) do
    at = System.os_time(:millisecond)
    seen = see()
    workers = Map.new(seen.workers, &track(&1, state.workers, at, seen))
    starting = Map.new(seen.reserved, &wait_for(&1, state.workers, seen))

    %{
      state
      | at: at,
        looked: now(),
        encoded: nil,
        workers: Map.merge(starting, workers),
        total: Series.put(state.total, total(at, Map.values(workers))),
        beam: add_process(state.beam, at, String.to_integer(System.pid())),
        guardian: add_process(state.guardian, at, Overview.guardian_pid()),
        pools: seen.pools
    }
  end

  # Not from the sum of processor time, which changes with every worker that comes and goes. At the first look at all
  # of them there is none yet.
  defp total(at, workers) do
    shares = for %{row: %{cpu: cpu}} when cpu != nil <- workers, do: cpu
    memory = for %{row: row} <- workers, do: row.memory
    cpu = if shares != [] or workers == [], do: Float.round(Enum.sum([0.0 | shares]), 1)
    [at, cpu, Enum.sum(memory), length(workers)]
  end

  # Snakepit may be started and stopped beside it, at any moment.
  defp see do
    if RunState.current() == :running, do: see_running(), else: @nothing
  rescue
    ArgumentError -> @nothing
  catch
    :exit, _stopped -> @nothing
  end

  defp see_running do
    pools = Pools.infos()

    {active, reserved} =
      Enum.split_with(ProcessRegistry.list_all_workers(), fn {_id, info} ->
        info.status == :active
      end)

    pool_of =
      for {_pid, prefix, %{workers: workers}} <- pools,
          worker <- workers,
          into: %{},
          do: {worker.id, {prefix, worker}}

    %{
      workers: Usage.of_workers(active),
      reserved: reserved,
      pools: pools,
      pool_of: pool_of,
      healths: HeartbeatMonitor.Poller.healths()
    }
  end

  defp track({id, info, usage}, known, at, seen) do
    worker = known[id] || new()
    restarts = if worker.os_pid in [nil, info.os_pid], do: 0, else: 1
    # The processor time of another process begins at zero.
    series = if restarts == 1, do: %{worker.series | at: nil}, else: worker.series
    # Nothing is known of one that is gone, or if the guardian was too slow to answer.
    series =
      if usage.processes > 0,
        do: Series.add(series, at, usage.cpu_us, usage.memory_bytes),
        else: series

    worker = %{worker | os_pid: info.os_pid, series: series, restarts: worker.restarts + restarts}
    worker = if worker.owner == info.owner, do: worker, else: know_owner(worker, info.owner)
    row = Overview.row(id, info, usage, worker, seen)
    {id, %{worker | row: row}}
  end

  defp wait_for({id, info}, known, seen) do
    worker = known[id] || new()
    {id, %{worker | row: Overview.starting_row(id, info, worker, seen)}}
  end

  defp new, do: %{os_pid: nil, owner: nil, kind: nil, series: %Series{}, restarts: 0, row: nil}

  # What is registered by another process than a worker's is shown, and is not asked.
  defp know_owner(worker, owner) do
    kind = if Detail.worker?(owner), do: "worker", else: "other"
    %{worker | owner: owner, kind: kind}
  end

  defp add_process(series, _at, nil), do: series

  defp add_process(series, at, os_pid) do
    case Usage.of_process(os_pid) do
      {:ok, usage} -> Series.add(series, at, usage.cpu_us, usage.memory_bytes)
      {:error, _gone} -> series
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
