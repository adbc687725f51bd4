defmodule Snakepit.HeartbeatMonitor.Lifeline do
  @moduledoc false

  # The lines that go over a lifeline, as `Snakepit.HeartbeatMonitor` describes them.

  # A longer line is no pong.
  @max_line 1_024

  @doc "Sends a ping, without waiting: to a process that reads nothing, another is not worth it."
  def ping(socket, timestamp),
    do: :socket.send(socket, ["PING:", Integer.to_string(timestamp), ?\n], [], 0)

  @doc """
  Reads once what has arrived, without waiting; `rest` is the beginning of a line that was read before.

  When there is nothing, the caller gets a message `{:"$socket", socket, :select, _}` when there is. A
  lifeline that the process has closed stays silent: if the process has ended its worker knows better, and
  if not, its pongs are missing.
  """
  @spec read(:socket.socket(), binary()) :: {:ok, [pong()], rest :: binary()} | :nothing
  def read(socket, rest) do
    case :socket.recv(socket, 0, [], :nowait) do
      {:ok, data} ->
        {pongs, rest} = pongs(rest <> data)
        {:ok, pongs, rest}

      {:select, _info} ->
        :nothing

      {:error, _closed} ->
        :nothing
    end
  end

  @typedoc """
  The timestamp of the ping, and the time of the answer by the clock of the process. Either is `nil` if it is no number:
  the line is a sign of life all the same.
  """
  @type pong :: {integer() | nil, integer() | nil}

  @doc "Returns the pongs in the data, and the beginning of the next line."
  @spec pongs(binary()) :: {[pong()], binary()}
  def pongs(data) do
    [rest | lines] = data |> :binary.split("\n", [:global]) |> Enum.reverse()
    rest = if byte_size(rest) > @max_line, do: "", else: :binary.copy(rest)
    {for("PONG:" <> answer <- Enum.reverse(lines), do: pong(answer)), rest}
  end

  defp pong(answer) do
    case Integer.parse(answer) do
      {timestamp, ":" <> now} -> {timestamp, time(now)}
      {timestamp, ""} -> {timestamp, nil}
      _no_timestamp -> {nil, nil}
    end
  end

  defp time(now) do
    case Integer.parse(now) do
      {answered_at, _rest} -> answered_at
      :error -> nil
    end
  end
end
