defmodule Snakepit.HeartbeatMonitor.Server do
  @moduledoc false

  # The process of a monitor: pings, looks for the pong, counts what is missing. While all is well somebody
  # else does it for all (`Rounds`). What it promises is described in `Snakepit.HeartbeatMonitor`.

  use GenServer

  alias Snakepit.HeartbeatMonitor
  alias Snakepit.HeartbeatMonitor.{Events, Lifeline, Pinger, Rounds}

  # A timer that is this much late says that the BEAM did not run, or did not get around to it.
  @late_ms 50
  # It bounds what a process that floods its lifeline can do to the BEAM.
  @reads_per_turn 4

  # Between the times at which pings go out together. Wider, and those that answer last wait for it.
  @widest_grid_ms 100

  # When to look for the pong of a process that does not tell when it answered. It is also the least
  # latency that can be told then.
  @look_ms 3

  @impl true
  def init(opts) do
    {:ok,
     Map.merge(opts, %{
       grid: opts.ping_interval |> div(20) |> max(1) |> min(@widest_grid_ms),
       missed: 0,
       pings: 0,
       pongs: 0,
       last_pong_at: nil,
       last_latency: nil,
       # Whether its pongs say when it answered.
       tells_time?: false,
       # The timestamp of the ping in flight, and when its pong is a miss.
       in_flight: nil,
       deadline: nil,
       # When the last ping was sent: the next one is counted from there.
       pinged_at: nil,
       timer: nil,
       due: nil,
       # Set while someone else asks in the place of this process.
       rounds: nil,
       pinger: nil,
       pinger_busy?: false,
       # The beginning of a line.
       rest: ""
     })}
  end

  @impl true
  def handle_cast(:begin, state) do
    {:noreply, ping(state)}
  end

  @impl true
  def handle_call(:health, _from, state) do
    state = state |> come_back() |> read() |> catch_up()

    status =
      cond do
        state.missed > 0 -> :unhealthy
        state.pongs == 0 -> :unknown
        true -> :healthy
      end

    health = %{
      status: status,
      missed_heartbeats: state.missed,
      pings_sent: state.pings,
      pongs_received: state.pongs,
      last_pong_ms_ago: state.last_pong_at && now() - state.last_pong_at,
      last_latency_ms: state.last_latency
    }

    {:reply, health, state}
  end

  def handle_call(:force_ping, _from, state) do
    case state |> come_back() |> read() do
      %{in_flight: nil} = state -> {:reply, :ok, state |> disarm() |> ping()}
      state -> {:reply, :ok, state}
    end
  end

  @impl true
  def handle_info({:timeout, timer, :tick}, %{timer: timer} = state), do: tick(state, now())

  def handle_info({:"$socket", socket, :select, _handle}, %{socket: socket} = state),
    do: {:noreply, state |> read() |> catch_up()}

  def handle_info({Pinger, pinger, answer}, %{pinger: pinger} = state) do
    state = %{state | pinger_busy?: false}

    if answer,
      do: {:noreply, state |> pong(nil) |> catch_up()},
      # Again, within the same threshold.
      else: {:noreply, state |> disarm() |> arm(min(now() + state.ping_interval, state.deadline))}
  end

  def handle_info({Rounds, :back, visit}, %{rounds: rounds} = state) when rounds != nil,
    do: state |> resume(visit) |> tick(now())

  def handle_info({:DOWN, rounds, :process, _pid, _reason}, %{rounds: rounds} = state),
    do: {:noreply, state |> resume(nil) |> ping()}

  def handle_info(_late_or_stray, state), do: {:noreply, state}

  # One timer for both: it is set to the next thing that can happen, and a pong in time does not touch
  # it.
  defp tick(%{in_flight: nil} = state, now) do
    next = next_ping(state)

    cond do
      next > now -> {:noreply, arm(state, next)}
      rounds = well?(state) && Rounds.join(visit(state)) -> {:noreply, hand_over(state, rounds)}
      true -> {:noreply, ping(state)}
    end
  end

  defp tick(state, now) do
    # A pong may be here that nobody has looked at yet.
    case read(state) do
      %{in_flight: nil} = state -> tick(state, now)
      state -> wait_on(state, now)
    end
  end

  defp wait_on(%{deadline: deadline} = state, now) when now < deadline,
    do: {:noreply, state |> try_again() |> arm(deadline)}

  # It has not been ready yet, and somebody else says how long that may take.
  defp wait_on(%{patient: true, pongs: 0, ping: nil} = state, now),
    do: {:noreply, extend(state, now)}

  defp wait_on(%{patient: true, pongs: 0} = state, _now),
    do: {:noreply, state |> drop_pinger() |> ping()}

  defp wait_on(state, now) when now - state.due > @late_ms, do: {:noreply, extend(state, now)}
  defp wait_on(state, _now), do: miss(%{state | missed: state.missed + 1})

  defp extend(state, now) do
    deadline = now + state.timeout_threshold
    arm(%{state | deadline: deadline}, deadline)
  end

  # After a pong that took longer than the interval: the timer waits for the end of the threshold.
  # Before the first ping there is none.
  defp catch_up(%{in_flight: nil, due: due} = state) when due != nil do
    next = next_ping(state)
    if due > next, do: state |> disarm() |> arm(max(next, now())), else: state
  end

  defp catch_up(state), do: state

  defp miss(state) do
    metadata = %{worker_id: state.worker_id, timeout_threshold_ms: state.timeout_threshold}
    Events.timeout(state.missed, metadata)

    if state.missed >= state.max_missed_heartbeats do
      Process.exit(state.worker, :heartbeat_timeout)
      {:stop, :normal, state}
    else
      {:noreply, state |> drop_pinger() |> ping()}
    end
  end

  defp ping(state) do
    timestamp = System.os_time(:millisecond)
    in_flight = Integer.to_string(timestamp)
    now = now()
    state = transmit(state, in_flight)
    Events.ping_sent(timestamp, metadata(state))

    state = %{
      state
      | in_flight: in_flight,
        deadline: now + state.timeout_threshold,
        pinged_at: now,
        pings: state.pings + 1
    }

    arm(state, min(state.deadline, next_look(state, now)))
  end

  # Whether its pong to this ping can wait until the next one is due, and will be all that there is.
  defp well?(state) do
    state.tells_time? and state.missed == 0 and state.rest == "" and
      state.timeout_threshold >= state.ping_interval
  end

  defp hand_over(state, rounds), do: %{state | rounds: rounds, timer: nil, due: nil}

  defp visit(state) do
    %{
      monitor: self(),
      socket: state.socket,
      interval: state.ping_interval,
      grid: state.grid,
      metadata: metadata(state),
      pings: state.pings,
      pongs: state.pongs,
      last_pong_at: state.last_pong_at,
      last_latency: state.last_latency,
      in_flight: nil,
      pinged_at: nil,
      due: nil,
      data: ""
    }
  end

  defp come_back(%{rounds: nil} = state), do: state

  defp come_back(state) do
    case Rounds.leave() do
      nil ->
        state |> resume(nil) |> ping()

      visit ->
        state = resume(state, visit)
        if state.in_flight, do: arm(state, min(state.deadline, state.due)), else: ping(state)
    end
  end

  # With what has come of it meanwhile. A pong may be among what was not understood.
  defp resume(state, visit) do
    Process.demonitor(state.rounds, [:flush])
    state = %{state | rounds: nil}
    if visit, do: take_over(state, visit), else: state
  end

  defp take_over(state, visit) do
    known =
      Map.take(visit, [:pings, :pongs, :last_pong_at, :last_latency, :in_flight, :pinged_at, :due])

    state = Map.merge(state, known)
    take(%{state | deadline: visit.pinged_at + state.timeout_threshold}, visit.data)
  end

  # The first pong is awaited at once, because others wait for it. After that, those that say when they
  # were sent are looked at when it is time for the next ping, and others together with those of all who
  # were pinged together: most are there after a moment, and only for the rest does a message have to
  # wake the BEAM.
  defp next_look(%{ping: nil, pongs: 0}, now), do: now
  defp next_look(%{ping: nil, tells_time?: false}, now), do: now + @look_ms
  defp next_look(state, _now), do: next_ping(state)

  defp next_ping(state),
    do: Lifeline.next_ping(state.pinged_at, state.ping_interval, state.grid)

  # A lifeline that is closed shows in the pong that does not come.
  defp transmit(%{ping: nil} = state, timestamp) do
    Lifeline.ping(state.socket, timestamp)
    state
  end

  defp transmit(%{pinger: nil} = state, timestamp) do
    pinger = Pinger.start_link(state.ping, Map.take(state, [:worker_id, :os_pid]))
    transmit(%{state | pinger: pinger}, timestamp)
  end

  defp transmit(state, _timestamp) do
    Pinger.ask(state.pinger)
    %{state | pinger_busy?: true}
  end

  # A function that said no is asked again; one that hangs is left alone until its time is up.
  defp try_again(%{pinger: pinger, pinger_busy?: false} = state) when pinger != nil,
    do: transmit(state, nil)

  defp try_again(state), do: state

  defp drop_pinger(%{pinger: nil} = state), do: state

  defp drop_pinger(state) do
    Pinger.kill(state.pinger)
    %{state | pinger: nil, pinger_busy?: false}
  end

  # What has arrived, up to the pong, or a message when there is more. A lifeline that the process has
  # closed gives neither: if it has ended the worker knows better, and if not, its pongs are missing.
  defp read(state), do: read(state, @reads_per_turn)

  defp read(%{socket: socket, in_flight: in_flight} = state, _reads)
       when socket == nil or in_flight == nil,
       do: state

  defp read(state, 0) do
    # Others first.
    send(self(), {:"$socket", state.socket, :select, :again})
    state
  end

  defp read(state, reads) do
    case :socket.recv(state.socket, 0, [], :nowait) do
      {:ok, data} -> state |> take(data) |> read(reads - 1)
      {:select, _info} -> state
      {:error, _closed} -> state
    end
  end

  defp take(state, data) do
    {pongs, rest} = Lifeline.pongs(state.rest <> data)
    Enum.reduce(pongs, %{state | rest: rest}, &answered/2)
  end

  defp answered({timestamp, after_ms}, %{in_flight: timestamp} = state), do: pong(state, after_ms)
  # One to an earlier ping is a sign of life, but no answer to the one in flight.
  defp answered(_earlier, state), do: alive(state, now())

  # `after_ms` is what its process says, by its own clock.
  defp pong(state, after_ms) do
    {how, latency} = Lifeline.latency(after_ms, now() - state.pinged_at)
    Events.pong_received(latency, metadata(state))
    state = %{state | in_flight: nil, last_latency: latency, tells_time?: how == :told}
    alive(state, state.pinged_at + latency)
  end

  defp alive(state, at) do
    if state.pongs == 0, do: send(state.worker, {HeartbeatMonitor, self(), :first_pong})
    %{state | missed: 0, pongs: state.pongs + 1, last_pong_at: at}
  end

  defp metadata(state), do: %{worker_id: state.worker_id, worker_pid: state.worker}

  defp arm(state, due) do
    timer = :erlang.start_timer(due, self(), :tick, abs: true)
    %{state | timer: timer, due: due}
  end

  defp disarm(%{timer: nil} = state), do: state

  defp disarm(state) do
    :erlang.cancel_timer(state.timer)
    %{state | timer: nil}
  end

  defp now, do: System.monotonic_time(:millisecond)
end
