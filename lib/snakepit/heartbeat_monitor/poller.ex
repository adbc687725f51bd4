defmodule Snakepit.HeartbeatMonitor.Poller do
  @moduledoc false

  # Pings all workers that have a monitor: it sends the pings that are due, reads the pongs that have arrived,
  # and does what each worker's `FailureDetector` decides. It is one process for all of them, because waking a
  # process takes the BEAM longer than a ping: a thousand monitors that ping for themselves take twice the
  # processor time.
  #
  # The state of the workers is in a table that outlives this process. A poller that was started again pings
  # all of them, because its predecessor may have read pongs before it ended, and counts nothing as missed.

  use GenServer

  alias Snakepit.{HeartbeatMonitor, Telemetry}
  alias Snakepit.HeartbeatMonitor.{FailureDetector, Health, Lifeline, Target}

  # It bounds what a process that floods its lifeline can do to the BEAM.
  @reads_per_turn 4

  @doc "Creates the table. The caller owns it, and has to outlive the poller."
  def create_table, do: :ets.new(__MODULE__, [:named_table, :public])

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Pings the caller's worker from now on, until the caller ends."
  @spec watch(Target.t()) :: :ok
  def watch(%Target{} = target) do
    # Order: a poller that is being started finds it in the table, or gets the message, or both.
    put(target)
    GenServer.cast(__MODULE__, {:watch, self()})
  end

  @doc "Returns the health of the caller's worker; without a poller, what the last one knew."
  @spec health() :: Health.t()
  def health do
    GenServer.call(__MODULE__, {:health, self()}, :infinity)
  catch
    :exit, _no_poller -> FailureDetector.health(fetch!(self()).detector, now())
  end

  @doc """
  Returns the health of all workers, by their BEAM processes. Pongs that nobody has read yet are missing, so a latency may
  be that of the ping before.
  """
  @spec healths() :: %{pid() => Health.t()}
  def healths do
    now = now()

    for {_monitor, target} <- :ets.tab2list(__MODULE__),
        into: %{},
        do: {target.worker, FailureDetector.health(target.detector, now)}
  end

  @doc "Pings the caller's worker now. Without a poller, the next one begins with that."
  @spec force_ping() :: :ok
  def force_ping do
    GenServer.call(__MODULE__, {:force_ping, self()}, :infinity)
  catch
    :exit, _no_poller -> :ok
  end

  @doc "Passes on what the `:ping` function of the caller's worker has returned for the ping with that timestamp."
  @spec answered(integer(), boolean()) :: :ok
  def answered(timestamp, alive?),
    do: GenServer.cast(__MODULE__, {:answered, self(), timestamp, alive?})

  @impl true
  def init(_opts) do
    # Monitors in lists, by the time at which their detectors are due. All of a list are dealt with one
    # after the other, so there is nothing to look up.
    state = %{times: %{}, timer: nil, sockets: %{}}
    targets = for {_monitor, target} <- :ets.tab2list(__MODULE__), do: target
    {:ok, targets |> Enum.reduce(state, &begin/2) |> arm()}
  end

  @impl true
  def handle_cast({:watch, monitor}, state) do
    case :ets.lookup(__MODULE__, monitor) do
      [{_monitor, %{detector: %{pings: 0}} = target}] ->
        {:noreply, target |> begin(state) |> arm()}

      # It was in the table when this poller started, and may have ended since.
      _begun_or_gone ->
        {:noreply, state}
    end
  end

  def handle_cast({:answered, monitor, timestamp, alive?}, state) do
    {:noreply, change(state, monitor, &answer(&1, timestamp, alive?))}
  end

  @impl true
  def handle_call({:health, monitor}, _from, state) do
    state = change(state, monitor, &read/1)
    {:reply, FailureDetector.health(fetch!(monitor).detector, now()), state}
  end

  def handle_call({:force_ping, monitor}, _from, state) do
    force_ping = fn target ->
      target |> read() |> decide(&FailureDetector.force_ping(&1, clock()))
    end

    {:reply, :ok, change(state, monitor, force_ping)}
  end

  @impl true
  def handle_info({:timeout, timer, due}, %{timer: {timer, due}} = state) do
    {monitors, times} = Map.pop(state.times, due, [])
    {:noreply, monitors |> Enum.reduce(%{state | times: times, timer: nil}, &tick/2) |> arm()}
  end

  def handle_info({:"$socket", socket, :select, _handle}, state) do
    case state.sockets do
      %{^socket => monitor} -> {:noreply, change(state, monitor, &read/1)}
      _gone -> {:noreply, state}
    end
  end

  def handle_info({:DOWN, _monitor, :process, monitor, _reason}, state) do
    target = fetch!(monitor)
    :ets.delete(__MODULE__, monitor)
    state = unschedule(state, target)
    {:noreply, %{state | sockets: Map.delete(state.sockets, target.socket)}}
  end

  # A timer that was cancelled too late, or a lifeline that was closed.
  def handle_info(_stray, state), do: {:noreply, state}

  # The beginning of a line is forgotten: the end of it may have been read by a poller that died.
  defp begin(target, state) do
    Process.monitor(target.monitor)
    target = decide(%{target | rest: ""}, &FailureDetector.ping(&1, clock()))
    put(target)
    state |> remember_socket(target) |> schedule(target)
  end

  # For the messages that say that something has arrived.
  defp remember_socket(state, %{socket: nil}), do: state

  defp remember_socket(state, target),
    do: put_in(state.sockets[target.socket], target.monitor)

  defp tick(monitor, state) do
    # Order: a pong may be there that nobody has looked at yet.
    target = monitor |> fetch!() |> read() |> decide(&FailureDetector.tick(&1, clock()))
    put(target)
    schedule(state, target)
  end

  # Between its ticks.
  defp change(state, monitor, fun) do
    target = fetch!(monitor)
    changed = fun.(target)
    put(changed)
    state |> unschedule(target) |> schedule(changed) |> arm()
  end

  defp answer(target, timestamp, true),
    do: decide(target, &FailureDetector.pong(&1, {timestamp, nil}, now()))

  defp answer(target, timestamp, false),
    do: %{target | detector: FailureDetector.declined(target.detector, timestamp, now())}

  # What has arrived, up to the pong, or a message when there is more.
  defp read(target, reads \\ @reads_per_turn)

  defp read(%{socket: socket, detector: detector} = target, _reads)
       when socket == nil or detector.in_flight == nil,
       do: target

  defp read(target, 0) do
    # Yield, so that a flood does not starve other messages.
    send(self(), {:"$socket", target.socket, :select, :again})
    target
  end

  defp read(target, reads) do
    case Lifeline.read(target.socket, target.rest) do
      {:ok, pongs, rest} ->
        pongs |> Enum.reduce(%{target | rest: rest}, &pong/2) |> read(reads - 1)

      :nothing ->
        target
    end
  end

  defp pong(pong, target), do: decide(target, &FailureDetector.pong(&1, pong, now()))

  defp decide(target, fun) do
    {detector, actions} = fun.(target.detector)
    Enum.each(actions, &perform(&1, target))
    %{target | detector: detector}
  end

  defp perform({:ping, timestamp}, target) do
    transmit(target, timestamp)
    measurements = %{count: 1, timestamp: timestamp}
    Telemetry.execute([:snakepit, :heartbeat, :ping_sent], measurements, metadata(target))
  end

  defp perform({:retry, timestamp}, target), do: transmit(target, timestamp)

  defp perform({:pong, latency}, target) do
    measurements = %{count: 1, latency_ms: latency}
    Telemetry.execute([:snakepit, :heartbeat, :pong_received], measurements, metadata(target))
  end

  defp perform({:missed, missed}, target) do
    measurements = %{count: 1, missed_count: missed}
    threshold = target.detector.timeout_threshold
    metadata = %{worker_id: target.worker_id, timeout_threshold_ms: threshold}
    Telemetry.execute([:snakepit, :heartbeat, :timeout], measurements, metadata)
  end

  defp perform(:first_pong, target),
    do: send(target.worker, {HeartbeatMonitor, target.monitor, :first_pong})

  defp perform(:dead, target), do: send(target.monitor, {__MODULE__, :dead})

  defp transmit(%{socket: nil} = target, timestamp),
    do: send(target.monitor, {__MODULE__, {:ping, timestamp}})

  # A lifeline that is closed shows in the pong that does not come.
  defp transmit(target, timestamp), do: Lifeline.ping(target.socket, timestamp)

  defp metadata(target), do: %{worker_id: target.worker_id, worker_pid: target.worker}

  defp schedule(state, %{detector: %{due: nil}}), do: state

  defp schedule(state, %{monitor: monitor, detector: %{due: due}}),
    do: %{state | times: Map.update(state.times, due, [monitor], &[monitor | &1])}

  defp unschedule(state, %{monitor: monitor, detector: %{due: due}}) do
    case state.times do
      %{^due => [^monitor]} -> %{state | times: Map.delete(state.times, due)}
      %{^due => monitors} -> put_in(state.times[due], List.delete(monitors, monitor))
      _not_due -> state
    end
  end

  # For the first of the times.
  defp arm(%{times: times} = state) when times == %{}, do: state

  defp arm(state) do
    due = state.times |> Map.keys() |> Enum.min()

    case state.timer do
      {_timer, ^due} ->
        state

      other ->
        with {timer, _due} <- other, do: :erlang.cancel_timer(timer)
        %{state | timer: {:erlang.start_timer(due, self(), due, abs: true), due}}
    end
  end

  defp fetch!(monitor), do: :ets.lookup_element(__MODULE__, monitor, 2)
  defp put(target), do: :ets.insert(__MODULE__, {target.monitor, target})

  defp clock, do: {now(), System.os_time(:millisecond)}
  defp now, do: System.monotonic_time(:millisecond)
end
