defmodule Snakepit.HeartbeatMonitor.Server do
  @moduledoc false

  # The process of one monitor. It owns the lifeline, or the process that calls the `:ping` function, so that
  # both end with the worker. It has no timer and decides nothing: `Poller` does that for all monitors.

  use GenServer

  alias Snakepit.HeartbeatMonitor.{FailureDetector, Pinger, Poller, Target}

  @impl true
  def init(opts), do: {:ok, Map.merge(opts, %{pinger: nil, pinger_busy?: false})}

  @impl true
  def handle_cast(:begin, state) do
    # Not only linked: the worker may be another process than the one that has started the monitor.
    Process.monitor(state.worker)
    {transport, socket} = if state.ping, do: {:function, nil}, else: {:lifeline, state.socket}

    Poller.watch(%Target{
      monitor: self(),
      worker: state.worker,
      worker_id: state.worker_id,
      socket: socket,
      detector: FailureDetector.new(transport, state)
    })

    {:noreply, state}
  end

  @impl true
  def handle_call(:health, _from, state), do: {:reply, Poller.health(), state}
  def handle_call(:force_ping, _from, state), do: {:reply, Poller.force_ping(), state}

  @impl true
  def handle_info({Poller, {:ping, timestamp}}, state), do: {:noreply, ask(state, timestamp)}

  def handle_info({Poller, :dead}, state) do
    Process.exit(state.worker, :heartbeat_timeout)
    {:stop, :normal, state}
  end

  def handle_info({Pinger, pinger, timestamp, alive?}, %{pinger: pinger} = state) do
    Poller.answered(timestamp, alive?)
    {:noreply, %{state | pinger_busy?: false}}
  end

  def handle_info({:DOWN, _monitor, :process, worker, _reason}, %{worker: worker} = state),
    do: {:stop, :normal, state}

  # From a pinger that was killed as it answered.
  def handle_info(_late_or_stray, state), do: {:noreply, state}

  defp ask(%{pinger_busy?: true} = state, timestamp) do
    Pinger.kill(state.pinger)
    ask(%{state | pinger: nil, pinger_busy?: false}, timestamp)
  end

  defp ask(%{pinger: nil} = state, timestamp) do
    pinger = Pinger.start_link(state.ping, Map.take(state, [:worker_id, :os_pid]))
    ask(%{state | pinger: pinger}, timestamp)
  end

  defp ask(state, timestamp) do
    Pinger.ask(state.pinger, timestamp)
    %{state | pinger_busy?: true}
  end
end
