defmodule Snakepit.HeartbeatMonitor.Rounds do
  @moduledoc false

  # Asks those that are well, in the place of their monitors: all who are due at one time in one go. To
  # wake a process costs the BEAM more than a ping does, so a thousand monitors that ping for themselves
  # take twice the processor time.
  #
  # This is for the everyday alone: when the next ping is due, the pong to the last one is there, and says
  # when it was sent. Whatever else may be, the monitor gets its worker back and knows what to do.

  use GenServer

  alias Snakepit.HeartbeatMonitor.Lifeline
  alias Snakepit.Telemetry

  @typedoc """
  What a monitor hands over and gets back. All times are milliseconds of a clock that nobody sets.

    * `:socket`, `:interval`, `:grid`, `:metadata` - the lifeline, when to ask, and for whom
    * `:pings`, `:pongs`, `:last_pong_at`, `:last_latency` - what has come of it
    * `:in_flight`, `:pinged_at` - the timestamp of the last ping, and when it was sent
    * `:due` - when its pong was to be looked at
    * `:data` - what has come that was no such pong
  """
  @type visit :: map()

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Hands the caller's worker over; the first ping is due now. `false` if there is nobody to take it."
  @spec join(visit()) :: reference() | false
  def join(visit) do
    case Process.whereis(__MODULE__) do
      nil ->
        false

      rounds ->
        GenServer.cast(rounds, {:join, self(), visit})
        Process.monitor(rounds)
    end
  end

  @doc "Takes the caller's worker back. `nil` if whoever had it is gone."
  @spec leave() :: visit() | nil
  def leave do
    with nil <- GenServer.call(__MODULE__, :leave, :infinity) do
      # On its way back already; from one process to another, nothing overtakes.
      receive do
        {__MODULE__, :back, visit} -> visit
      after
        0 -> nil
      end
    end
  catch
    :exit, _reason -> nil
  end

  @impl true
  # `visits` by monitor; `times` has the monitors that are due then, and some that have left since.
  def init(_opts), do: {:ok, %{visits: %{}, times: %{}, timer: nil}}

  @impl true
  def handle_cast({:join, monitor, visit}, state) do
    {:noreply, state |> ask(monitor, visit) |> arm()}
  end

  @impl true
  def handle_call(:leave, {monitor, _tag}, state) do
    {visit, visits} = Map.pop(state.visits, monitor)
    {:reply, visit, %{state | visits: visits}}
  end

  @impl true
  def handle_info({:timeout, timer, due}, %{timer: {timer, due}} = state) do
    {monitors, times} = Map.pop(state.times, due)
    state = %{state | times: times, timer: nil}
    {:noreply, monitors |> Enum.reduce(state, &visit(&2, &1, due)) |> arm()}
  end

  # A lifeline that had something to say at the moment at which nobody waited for it any more.
  def handle_info(_stray, state), do: {:noreply, state}

  defp visit(state, monitor, due) do
    case state.visits do
      %{^monitor => %{due: ^due} = visit} -> look(state, monitor, visit)
      # Has left; perhaps it has come again since, and is due at another time.
      _other -> state
    end
  end

  defp look(state, monitor, visit) do
    with {:ok, data} <- Lifeline.receive_now(visit.socket),
         {:ok, latency} <- only_pong(visit, data) do
      Telemetry.execute(
        [:snakepit, :heartbeat, :pong_received],
        %{count: 1, latency_ms: latency},
        visit.metadata
      )

      answered = %{
        visit
        | pongs: visit.pongs + 1,
          last_pong_at: visit.pinged_at + latency,
          last_latency: latency
      }

      ask(state, monitor, answered)
    else
      {:unexpected, data} -> give_back(state, monitor, %{visit | data: data})
      :nothing -> give_back(state, monitor, visit)
    end
  end

  defp only_pong(%{in_flight: in_flight} = visit, data) do
    with {[{^in_flight, after_ms}], ""} <- Lifeline.pongs(data),
         {:told, latency} <- Lifeline.latency(after_ms, now() - visit.pinged_at) do
      {:ok, latency}
    else
      _other -> {:unexpected, data}
    end
  end

  defp give_back(state, monitor, visit) do
    send(monitor, {__MODULE__, :back, visit})
    %{state | visits: Map.delete(state.visits, monitor)}
  end

  defp ask(state, monitor, visit) do
    timestamp = System.os_time(:millisecond)
    now = now()
    Lifeline.ping(visit.socket, timestamp)
    measurements = %{count: 1, timestamp: timestamp}
    Telemetry.execute([:snakepit, :heartbeat, :ping_sent], measurements, visit.metadata)
    due = Lifeline.next_ping(now, visit.interval, visit.grid)
    in_flight = Integer.to_string(timestamp)
    visit = %{visit | in_flight: in_flight, pinged_at: now, due: due, pings: visit.pings + 1}

    %{
      state
      | visits: Map.put(state.visits, monitor, visit),
        times: Map.update(state.times, due, [monitor], &[monitor | &1])
    }
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

  defp now, do: System.monotonic_time(:millisecond)
end
