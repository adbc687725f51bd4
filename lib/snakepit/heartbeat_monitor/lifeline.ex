defmodule Snakepit.HeartbeatMonitor.Lifeline do
  @moduledoc false

  # The lines that go over a lifeline, as `Snakepit.HeartbeatMonitor` describes them.

  alias Snakepit.Pulse

  # A longer line is no pong.
  @max_line 1_024

  # No clock shows that many milliseconds.
  @too_late 1_000_000_000_000_000

  @doc "Sends a ping, without waiting: to a process that reads nothing, another is not worth it."
  def ping(socket, timestamp),
    do: :socket.send(socket, <<"PING:", timestamp::binary, ?\n>>, [], 0)

  @doc """
  When the next ping is due: at a time that others have too, up to a twentieth of the interval early,
  so that a thousand wake the BEAM a few times per second.
  """
  def next_ping(pinged_at, interval, grid), do: Pulse.at_or_before(pinged_at + interval, grid)

  @doc "What has arrived, without waiting and without being told later. A closed one has nothing."
  @spec receive_now(:socket.socket()) :: {:ok, binary()} | :nothing
  def receive_now(socket) do
    case :socket.recv(socket, 0, [], :nowait) do
      {:ok, data} ->
        {:ok, data}

      {:select, info} ->
        :socket.cancel(socket, info)
        :nothing

      {:error, _closed} ->
        :nothing
    end
  end

  @typedoc "The timestamp of a ping, as text, and how many milliseconds later it was answered."
  @type pong :: {binary(), integer() | nil}

  @doc "All pongs in what has arrived, and the beginning of the next line."
  @spec pongs(binary()) :: {[pong()], binary()}
  def pongs(data) do
    [rest | lines] = data |> :binary.split("\n", [:global]) |> Enum.reverse()
    rest = if byte_size(rest) > @max_line, do: "", else: :binary.copy(rest)
    {for("PONG:" <> answer <- Enum.reverse(lines), do: pong(answer)), rest}
  end

  @doc """
  When the process says that it answered, if what has arrived is its pong to that ping and nothing else.
  As `pongs/1`, for the everyday, in a fraction of the time.
  """
  @spec only_pong(binary(), binary()) :: {:ok, non_neg_integer()} | :other
  def only_pong(data, timestamp) do
    head = <<"PONG:", timestamp::binary, ?:>>
    size = byte_size(head)

    if :binary.longest_common_prefix([data, head]) == size,
      do: data |> binary_part(size, byte_size(data) - size) |> time(),
      else: :other
  end

  defp time(<<digit, rest::binary>>) when digit in ?0..?9, do: number(rest, digit - ?0)
  defp time(_no_time), do: :other

  defp number(<<digit, rest::binary>>, number) when digit in ?0..?9 and number < @too_late,
    do: number(rest, 10 * number + digit - ?0)

  defp number("\n", number), do: {:ok, number}
  defp number(_rest, _number), do: :other

  @doc """
  How long a pong took: `{:told, ms}` by the process's own clock, `elapsed` milliseconds having passed
  here since the ping, or `{:measured, ms}` if that cannot be.
  """
  @spec latency(integer() | nil, non_neg_integer()) :: {:told | :measured, non_neg_integer()}
  # The last millisecond may have begun for one and not for the other.
  def latency(after_ms, elapsed)
      when is_integer(after_ms) and after_ms >= 0 and after_ms <= elapsed + 1,
      do: {:told, min(after_ms, elapsed)}

  def latency(_after_ms, elapsed), do: {:measured, elapsed}

  # Whatever it is, it is a sign of life. That its times are none is another matter.
  defp pong(answer) do
    [timestamp | rest] = :binary.split(answer, ":")

    with [now] <- rest,
         {answered, _rest} <- Integer.parse(now),
         {asked, ""} <- Integer.parse(timestamp) do
      {timestamp, answered - asked}
    else
      _no_time -> {timestamp, nil}
    end
  end
end
