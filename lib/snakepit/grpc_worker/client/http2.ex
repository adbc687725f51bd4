defmodule Snakepit.GRPCWorker.Client.HTTP2 do
  @moduledoc """
  A small gRPC client of Snakepit's own, for servers on this machine: one connection by HTTP/2 without TLS, calls with one
  request, and one answer or many. It needs no package.

  A reader that does not read makes the server wait. What a server may send in one go, and what is kept of it, is bounded.
  It does not know TLS, compression, streams of requests, or several servers; `Snakepit.GRPCWorker.Client.Stub` does.
  """

  @behaviour Snakepit.GRPCWorker.Client

  alias Snakepit.GRPC.Connection

  @impl true
  def connect(address, _opts) do
    with {:ok, connection} <- Connection.start(address, self()),
         do: {:ok, connection, connection}
  end

  @impl true
  defdelegate call(connection, path, message, opts), to: Connection

  @impl true
  def stream(connection, path, message, opts) do
    Stream.resource(
      fn -> Connection.open_stream(connection, path, message, opts) end,
      &next(connection, &1),
      &cancel(connection, &1)
    )
  end

  defp next(connection, {:ok, stream} = opened) do
    case Connection.next(connection, stream) do
      {:ok, message} -> {[{:ok, message}], opened}
      :done -> {:halt, :ended}
      {:error, error} -> {[{:error, error}], :ended}
    end
  end

  defp next(_connection, {:error, error}), do: {[{:error, error}], :ended}
  defp next(_connection, :ended), do: {:halt, :ended}

  defp cancel(connection, {:ok, stream}), do: Connection.cancel(connection, stream)
  defp cancel(_connection, _ended), do: :ok

  @impl true
  defdelegate close(connection), to: Connection
end
