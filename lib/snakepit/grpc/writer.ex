defmodule Snakepit.GRPC.Writer do
  @moduledoc false

  # Writes to the socket of a connection, in a process of its own: a server that does not read makes the writer wait, and
  # not the connection, which has deadlines to keep. The server's windows bound what waits here for data, and `@most`
  # bounds it altogether: a server that reads nothing does not answer either.

  @most 67_108_864

  @enforce_keys [:pid, :unwritten]
  defstruct [:pid, :unwritten]

  @type t :: %__MODULE__{pid: pid(), unwritten: :atomics.atomics_ref()}

  @doc "Starts a writer. It is linked, and exits with `{:shutdown, reason}` when a write has failed."
  @spec start_link(:gen_tcp.socket()) :: t()
  def start_link(socket) do
    unwritten = :atomics.new(1, [])
    %__MODULE__{pid: spawn_link(fn -> loop(socket, unwritten) end), unwritten: unwritten}
  end

  @doc "Hands bytes over, which are written in their order."
  @spec write(t(), iodata()) :: :ok | {:error, :enobufs}
  def write(_writer, []), do: :ok

  def write(writer, data) do
    size = IO.iodata_length(data)

    if :atomics.add_get(writer.unwritten, 1, size) > @most do
      {:error, :enobufs}
    else
      send(writer.pid, {:write, data, size})
      :ok
    end
  end

  defp loop(socket, unwritten) do
    receive do
      {:write, data, size} ->
        with {:error, reason} <- :gen_tcp.send(socket, data), do: exit({:shutdown, reason})
        :atomics.sub(unwritten, 1, size)
        loop(socket, unwritten)
    end
  end
end
