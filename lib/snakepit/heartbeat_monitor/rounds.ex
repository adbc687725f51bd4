defmodule Snakepit.HeartbeatMonitor.Rounds do
  @moduledoc false

  # Asks those that are well, in the place of their monitors: all who are due at one time in one go. To
  # wake a process costs the BEAM more than a ping does, so a thousand monitors that ping for themselves
  # take twice the processor time.
  #
  # This is for the everyday alone: all pongs are there when they are looked at, and say when they were
  # sent. So nothing is lost if several are looked at together, as long as none of them could have come
  # too late meanwhile. Whatever else may be, the monitor gets its worker back and knows what to do.

  use GenServer

  alias Snakepit.HeartbeatMonitor.{Events, Lifeline}

  # To receive takes as long as to send, for one pong and for several.
  @most_unread 4

  @typedoc """
  What a monitor hands over and gets back. All times are milliseconds of a clock that nobody sets.

    * `:monitor`, `:socket`, `:interval`, `:threshold`, `:grid`, `:metadata` - whose it is, and when to ask
    * `:pings`, `:pongs`, `:last_pong_at`, `:last_latency` - what has come of it
    * `:unread` - pings whose pongs were not looked at, the oldest first: their timestamps as text, and
      when they were sent
    * `:pinged_at` - when the last one was
    * `:due` - when it is time for the next
    * `:data` - what has come that was not the pongs to these
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

  @doc """
  Takes the caller's worker back, with all pongs that are there. `nil` if whoever had it is gone.
  """
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
      {due, visit} -> {:reply, read(visit), update_in(state.times[due], &List.delete(&1, visit))}
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
    with false <- can_wait?(visit),
         %{unread: [_ | _]} = visit <- read(visit) do
      send(visit.monitor, {__MODULE__, :back, visit})
      state
    else
      true -> ask(state, visit)
      %{unread: []} = visit -> ask(state, visit)
    end
  end

  # Whether the oldest of its pongs is not late yet when the next ping is due.
  defp can_wait?(%{unread: [{_timestamp, pinged_at} | _] = unread} = visit),
    do:
      length(unread) < @most_unread and visit.due + visit.interval <= pinged_at + visit.threshold

  defp read(visit) do
    with {:ok, data} <- Lifeline.receive_now(visit.socket) do
      case Lifeline.pongs(data) do
        {pongs, ""} -> answered(visit, pongs, data)
        _incomplete -> %{visit | data: data}
      end
    else
      :nothing -> visit
    end
  end

  # All as they were to come, or none.
  defp answered(visit, pongs, data) do
    case latencies(visit.unread, pongs, now()) do
      :unexpected -> %{visit | data: data}
      latencies -> Enum.reduce(latencies, visit, &pong/2)
    end
  end

  defp latencies(_unread, [], _now), do: []

  defp latencies([{timestamp, pinged_at} | unread], [{timestamp, after_ms} | pongs], now) do
    with {:told, latency} <- Lifeline.latency(after_ms, now - pinged_at),
         latencies when is_list(latencies) <- latencies(unread, pongs, now) do
      [latency | latencies]
    else
      _other -> :unexpected
    end
  end

  defp latencies(_unread, _pongs, _now), do: :unexpected

  defp pong(latency, %{unread: [{_timestamp, pinged_at} | unread]} = visit) do
    Events.pong_received(latency, visit.metadata)
    pongs = visit.pongs + 1
    last_pong_at = pinged_at + latency
    %{visit | unread: unread, pongs: pongs, last_pong_at: last_pong_at, last_latency: latency}
  end

  defp ask(state, visit) do
    timestamp = System.os_time(:millisecond)
    text = Integer.to_string(timestamp)
    now = now()
    Lifeline.ping(visit.socket, text)
    Events.ping_sent(timestamp, visit.metadata)
    due = Lifeline.next_ping(now, visit.interval, visit.grid)
    unread = visit.unread ++ [{text, now}]
    visit = %{visit | unread: unread, pinged_at: now, due: due, pings: visit.pings + 1}
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
