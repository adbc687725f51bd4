defmodule Snakepit.HeartbeatMonitor.Lifeline do
  @moduledoc false

  # The lines that go over a lifeline, as `Snakepit.HeartbeatMonitor` describes them.

  # A longer line is no pong.
  @max_line 1_024

  @doc "Sends a ping, without waiting: to a process that reads nothing, another is not worth it."
  def ping(socket, timestamp),
    do: :socket.send(socket, ["PING:", Integer.to_string(timestamp), ?\n], [], 0)

  @typedoc "The timestamp of a ping, as text, and how many milliseconds later it was answered."
  @type pong :: {binary(), integer() | nil}

  @doc "All pongs in what has arrived, and the beginning of the next line."
  @spec pongs(binary()) :: {[pong()], binary()}
  def pongs(data) do
    [rest | lines] = data |> :binary.split("\n", [:global]) |> Enum.reverse()
    rest = if byte_size(rest) > @max_line, do: "", else: :binary.copy(rest)
    {for("PONG:" <> answer <- Enum.reverse(lines), do: pong(answer)), rest}
  end

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
