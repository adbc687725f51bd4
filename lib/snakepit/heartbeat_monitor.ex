defmodule Snakepit.HeartbeatMonitor do
  @moduledoc """
  Asks a worker's process for a sign of life, and ends the worker when there is none.

  Workers with the option `:heartbeat` have one of these.

  | option | meaning (default) |
  |---|---|
  | `:ping_interval` | milliseconds from one ping to the next (2000) |
  | `:timeout_threshold` | how long a pong may take (10000) |
  | `:max_missed_heartbeats` | that many misses in a row are the end (3) |

  No pong within the threshold is a miss, and the next ping follows at once. Any pong resets the count.
  At most one ping is in flight, so that a slow process is not buried in them. A process that stops
  answering is found after `timeout_threshold * max_missed_heartbeats`, plus `ping_interval` if it
  stopped right after a pong. Its worker exits with `:heartbeat_timeout` then, and takes the tree
  along.

  A pause of the BEAM is not held against the worker: if this process notices the end of a threshold
  too late, the pong may be waiting where nobody has looked yet, and it gets another threshold.

  ## The protocol

  The process finds the number of a connected socket in `SNAKEPIT_LIFELINE_FD`. Over it comes

      PING:<ts>\\n

  to be answered with the same `<ts>` and the process's own time in milliseconds:

      PONG:<ts>:<now>\\n

  With that time, the latency is known whenever the pong is looked at, which need not be before the next
  ping. A process that gives none, or not this machine's, may answer with anything in its place; its
  pongs are looked for a moment after each ping, which costs the BEAM more.

  When the socket is closed, the BEAM is gone, and the process should go too. All of it in Python:

      import os, socket, threading, time

      def answer():
          lifeline = socket.socket(fileno=int(os.environ["SNAKEPIT_LIFELINE_FD"]))
          for line in lifeline.makefile("r"):
              if line.startswith("PING:"):
                  now = int(time.time() * 1000)
                  lifeline.sendall(f"PONG:{line[5:].strip()}:{now}\\n".encode())
          os._exit(0)

      threading.Thread(target=answer, daemon=True).start()

  The package in `priv/python` does this with more care.

  ## Other transports

  With the worker's option `:ping`, a function takes the place of ping and pong: what gives `true`,
  `:ok` or `{:ok, _}` is a sign of life, anything else, or an exception, is none and is tried again
  after `ping_interval`. It runs in a process of its own, and may hang.
  """

  use GenServer

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

  @defaults [
    worker: nil,
    worker_id: nil,
    os_pid: nil,
    socket: nil,
    ping: nil,
    patient: false,
    ping_interval: 2_000,
    timeout_threshold: 10_000,
    max_missed_heartbeats: 3
  ]

  @doc """
  Starts a monitor that watches over `:worker`, a BEAM process, which gets an exit signal with the
  reason `:heartbeat_timeout` in the end. Workers start their own; this one is for those who need
  another.

  Required are `:worker`, `:worker_id`, and `:ping` or `:socket`, a connected lifeline that the caller
  owns. The rest are the options above.
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts = check!(Keyword.validate!(opts, @defaults))

    with {:ok, monitor} <- GenServer.start_link(__MODULE__, Map.new(opts)) do
      # Order: it must own the socket before it reads, so that it is closed with it.
      if opts[:socket],
        do: :ok = :socket.setopt(opts[:socket], {:otp, :controlling_process}, monitor)

      GenServer.cast(monitor, :begin)
      {:ok, monitor}
    end
  end

  @doc """
  How the worker is: `:status` (`:healthy`, `:unhealthy` after a miss, `:unknown` before the first
  pong), `:missed_heartbeats`, `:pings_sent`, `:pongs_received`, `:last_pong_ms_ago` and
  `:last_latency_ms`.
  """
  @spec get_health_status(GenServer.server()) :: map()
  def get_health_status(monitor), do: GenServer.call(monitor, :health)

  @doc "Sends a ping now, unless one is in flight."
  @spec force_ping(GenServer.server()) :: :ok
  def force_ping(monitor), do: GenServer.call(monitor, :force_ping)

  defp check!(opts) do
    for key <- [:ping_interval, :timeout_threshold, :max_missed_heartbeats],
        value = opts[key],
        not (is_integer(value) and value > 0) do
      raise ArgumentError,
            "expected #{inspect(key)} to be a positive integer, got: #{inspect(value)}"
    end

    unless is_pid(opts[:worker]) do
      raise ArgumentError, "expected :worker to be a pid, got: #{inspect(opts[:worker])}"
    end

    if opts[:socket] == nil and not (is_function(opts[:ping], 0) or is_function(opts[:ping], 1)) do
      raise ArgumentError,
            "expected :ping to be a function of no or one argument, got: #{inspect(opts[:ping])}"
    end

    opts
  end

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
    if state.pongs == 0, do: send(state.worker, {__MODULE__, self(), :first_pong})
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
