defmodule Snakepit.Test.Lifelines do
  @moduledoc "Lifelines without a process at the other end: the test answers the pings itself."

  import ExUnit.Assertions

  @patience_ms 5_000

  @doc "Both ends of a lifeline: the monitor's and the process's. The test owns them."
  def lifeline do
    path =
      Path.join(
        System.tmp_dir!(),
        "lifeline_#{System.unique_integer([:positive])}.#{System.pid()}"
      )

    address = %{family: :local, path: path}
    {:ok, listener} = :socket.open(:local, :stream)
    :ok = :socket.bind(listener, address)
    :ok = :socket.listen(listener)
    {:ok, ours} = :socket.open(:local, :stream)
    :ok = :socket.connect(ours, address)
    {:ok, theirs} = :socket.accept(listener)
    :ok = :socket.close(listener)
    File.rm!(path)
    {ours, theirs}
  end

  @doc "Waits for a ping and returns its timestamp."
  def await_ping(theirs) do
    assert {:ok, line} = :socket.recv(theirs, 0, @patience_ms)
    assert ["PING", timestamp] = line |> String.trim_trailing("\n") |> String.split(":")
    String.to_integer(timestamp)
  end

  @doc "Answers a ping as a process does that says when."
  def answer(theirs, timestamp),
    do: :ok = :socket.send(theirs, "PONG:#{timestamp}:#{System.os_time(:millisecond)}\n")

  @doc "Waits until the other end of a lifeline is closed."
  def await_closed(theirs) do
    case :socket.recv(theirs, 0, @patience_ms) do
      {:ok, _ping} -> await_closed(theirs)
      answer -> assert answer == {:error, :closed}
    end
  end
end
