defmodule Snakepit.Worker.Input do
  @moduledoc false

  # What goes into a worker's standard input.
  #
  # It is sent by a process of its own. Whoever sends to a process that does not read waits, and if that
  # were the one that reads from it, each would wait for the other.
  #
  # And over a descriptor of its own. `:gen_tcp` closes a connection when it cannot send, and throws away
  # what has arrived: the last words of a process that ended without reading all of its input.

  alias Snakepit.Error

  @enforce_keys [:writer, :socket]
  defstruct [:writer, :socket]

  @type t :: %__MODULE__{writer: pid(), socket: :socket.socket()}

  @doc """
  The way in of a connection that has not been read yet. Later it may be closed at any time, and its
  descriptor be another's.
  """
  @spec open(:gen_tcp.socket()) :: {:ok, :socket.socket()} | {:error, Error.t()}
  def open(connection) do
    kind = %{dup: true, domain: :local, type: :stream, protocol: :default}

    with {:ok, descriptor} <- :inet.getfd(connection),
         {:ok, socket} <- :socket.open(descriptor, kind) do
      {:ok, socket}
    else
      {:error, reason} -> {:error, %Error{operation: :connect, reason: reason}}
    end
  end

  @doc "Sends over it; `packet` is how what is sent is cut into packets."
  @spec start_link(:socket.socket(), :raw | :line | 4 | nil) :: t()
  def start_link(socket, packet),
    do: %__MODULE__{socket: socket, writer: spawn_link(fn -> loop(socket, packet) end)}

  @doc "Sends data, then answers `from`, if there is anybody."
  @spec write(t(), GenServer.from() | nil, binary()) :: :ok
  def write(input, from, data), do: tell(input, {:write, from, data})

  @doc "Ends the input, then answers `from`."
  @spec shutdown(t(), GenServer.from()) :: :ok
  def shutdown(input, from), do: tell(input, {:shutdown, from})

  @doc "Lets go of it. Those whose data has not been sent get an error."
  @spec close(t()) :: :ok
  def close(input) do
    Process.unlink(input.writer)
    # Order: what is being sent, and everything before the last message, fails at once then.
    :socket.close(input.socket)
    tell(input, :close)
  end

  @doc "What those get who cannot write."
  def error(reason, detail \\ nil),
    do: {:error, %Error{operation: :write, reason: reason, detail: detail}}

  defp tell(input, message) do
    send(input.writer, message)
    :ok
  end

  defp loop(socket, packet) do
    receive do
      {:write, from, data} ->
        answer(from, :socket.send(socket, framed(data, packet)))
        loop(socket, packet)

      {:shutdown, from} ->
        answer(from, :socket.shutdown(socket, :write))
        loop(socket, packet)

      :close ->
        :ok
    end
  end

  defp framed(data, 4), do: [<<byte_size(data)::32>>, data]
  defp framed(data, _raw_or_line), do: data

  defp answer(nil, _result), do: :ok
  defp answer(from, :ok), do: GenServer.reply(from, :ok)
  defp answer(from, {:error, {reason, _rest}}), do: GenServer.reply(from, error(reason))
  defp answer(from, {:error, reason}), do: GenServer.reply(from, error(reason))
end
