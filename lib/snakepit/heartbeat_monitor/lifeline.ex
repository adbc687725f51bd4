defmodule Snakepit.HeartbeatMonitor.Lifeline do
  @moduledoc false

  # The lines that go over a lifeline, as `Snakepit.HeartbeatMonitor` describes them.

  # A longer line is no pong.
  @max_line 1_024

  @doc "Sends a ping, without waiting: to a process that reads nothing, another is not worth it."
  def ping(socket, timestamp),
    do: :socket.send(socket, ["PING:", Integer.to_string(timestamp), ?\n], [], 0)

  @doc "The timestamps of all pongs in what has arrived, as text, and the beginning of the next line."
  @spec pongs(binary()) :: {[binary()], binary()}
  def pongs(data) do
    [rest | lines] = data |> :binary.split("\n", [:global]) |> Enum.reverse()
    rest = if byte_size(rest) > @max_line, do: "", else: :binary.copy(rest)
    {for("PONG:" <> answer <- Enum.reverse(lines), do: timestamp(answer)), rest}
  end

  defp timestamp(answer), do: answer |> :binary.split(":") |> hd()
end
