defmodule Snakepit.HeartbeatMonitor.Rounds do
  @moduledoc false

  # Asks those that are well, in the place of their monitors: all who are due at one time in one go. To
  # wake a process costs the BEAM more than a ping does, so a thousand monitors that ping for themselves
  # take twice the processor time.
  #
  # This is for the everyday alone: when the next ping is due, the pong to the last one is there, and says
  # when it was sent. Whatever else may be, the monitor gets its worker back and knows what to do.

  use GenServer

  alias Snakepit.HeartbeatMonitor.{Events, Lifeline}

  @typedoc """
  What a monitor hands over and gets back. All times are milliseconds of a clock that nobody sets.

    * `:monitor`, `:socket`, `:interval`, `:grid`, `:metadata` - whose it is, and when to ask
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
        GenServer.cast(rounds, {:join, visit})
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
  # Visits in lists, by the time at which they are due. All of a list are dealt with one after the other
  # and join the next, so there is nothing to look up; only who leaves has to be searched for.
  def init(_opts), do: {:ok, %{times: %{}, timer: nil}}

  @impl true
  def handle_cast({:join, visit}, state), do: {:noreply, state |> ask(visit) |> arm()}

  @impl true
  def handle_call(:leave, {monitor, _tag}, state) do
    found =
      Enum.find_value(state.times, fn {due, visits} ->
        visit = Enum.find(visits, &(&1.monitor == monitor))
        visit && {due, visit}
      end)

    case found do
      nil -> {:reply, nil, state}
      {due, visit} -> {:reply, visit, update_in(state.times[due], &List.delete(&1, visit))}
    end
  end

  @impl true
  def handle_info({:timeout, timer, due}, %{timer: {timer, due}} = state) do
    {visits, times} = Map.pop(state.times, due)
    {:noreply, visits |> Enum.reduce(%{state | times: times, timer: nil}, &look/2) |> arm()}
  end

  # A lifeline that had something to say at the moment at which nobody waited for it any more.
  def handle_info(_stray, state), do: {:noreply, state}

  defp look(visit, state) do
    with {:ok, data} <- Lifeline.receive_now(visit.socket),
         {:ok, latency} <- only_pong(visit, data) do
      Events.pong_received(latency, visit.metadata)
      last_pong_at = visit.pinged_at + latency
      pongs = visit.pongs + 1
      ask(state, %{visit | pongs: pongs, last_pong_at: last_pong_at, last_latency: latency})
    else
      {:unexpected, data} -> give_back(state, %{visit | data: data})
      :nothing -> give_back(state, visit)
    end
  end

  defp only_pong(visit, data) do
    with {:ok, answered} <- Lifeline.only_pong(data, visit.in_flight),
         after_ms = answered - String.to_integer(visit.in_flight),
         {:told, latency} <- Lifeline.latency(after_ms, now() - visit.pinged_at) do
      {:ok, latency}
    else
      _other -> {:unexpected, data}
    end
  end

  defp give_back(state, visit) do
    send(visit.monitor, {__MODULE__, :back, visit})
    state
  end

  defp ask(state, visit) do
    timestamp = System.os_time(:millisecond)
    in_flight = Integer.to_string(timestamp)
    now = now()
    Lifeline.ping(visit.socket, in_flight)
    Events.ping_sent(timestamp, visit.metadata)
    due = Lifeline.next_ping(now, visit.interval, visit.grid)
    visit = %{visit | in_flight: in_flight, pinged_at: now, due: due, pings: visit.pings + 1}
    %{state | times: Map.update(state.times, due, [visit], &[visit | &1])}
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
