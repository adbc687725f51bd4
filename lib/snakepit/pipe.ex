defmodule Snakepit.Pipe do
  @moduledoc false

  # This BEAM's end of a pipe to or from a program, or of its terminal. Reading and writing wait in a `receive` of the
  # caller: no scheduler waits, and what is not read yet makes the program wait. A pipe is closed when the process that
  # made it dies.

  alias Snakepit.Native

  @type t :: reference()

  @doc "Returns what there is to read, at least a byte; `:closed` at the end of it; `:timeout`."
  @spec read(t(), timeout()) :: {:ok, binary()} | :closed | :timeout
  def read(pipe, timeout) do
    tag = make_ref()

    case read_now(pipe, tag) do
      :again -> with :ok <- await(pipe, tag, timeout), do: read(pipe, timeout)
      answer -> answer
    end
  end

  @doc """
  Returns what there is to read without waiting; `:again` if there is nothing. Then the caller gets
  `{:select, pipe, tag, :ready_input}` when there is.
  """
  @spec read_now(t(), reference()) :: {:ok, binary()} | :closed | :again
  def read_now(pipe, tag \\ make_ref()) do
    case Native.pipe_read(pipe, tag) do
      {:ok, :eof} -> :closed
      {:ok, :again} -> :again
      {:ok, data} -> {:ok, data}
      # By its owner, or with it.
      {:error, _closed} -> :closed
    end
  end

  @doc "Sends the caller the message of `read_now/2`, behind those that it has already."
  @spec read_later(t()) :: term()
  def read_later(pipe), do: send(self(), {:select, pipe, nil, :ready_input})

  @doc """
  Sends the caller `{Snakepit.Pipe, :moment_over, pipe}` in a millisecond: until then the runtime need not watch the
  pipe.
  """
  @spec read_in_a_moment(t()) :: reference()
  def read_in_a_moment(pipe), do: :erlang.send_after(1, self(), {__MODULE__, :moment_over, pipe})

  @doc """
  Whether there is something to read within so many microseconds. Waits actively: the runtime takes longer to watch
  a pipe, be woken and send a message than many a program takes to answer.
  """
  @spec await(t(), non_neg_integer()) :: boolean()
  def await(pipe, microseconds), do: Native.pipe_await(pipe, microseconds) == {:ok, true}

  @doc """
  Returns how much of it the pipe has taken, without waiting; `:again` if there is no room. Then the caller gets
  `{:select, pipe, tag, :ready_output}` when there is.
  """
  @spec write_now(t(), binary()) :: {:ok, pos_integer()} | :again | {:error, :epipe | :closed}
  def write_now(pipe, data) do
    case Native.pipe_write(pipe, data, make_ref()) do
      {:ok, :again} -> :again
      {:ok, length} -> {:ok, length}
      {:error, {:epipe, nil}} -> {:error, :epipe}
      # By its owner, or with it.
      {:error, _closed} -> {:error, :closed}
    end
  end

  @doc """
  Writes all of it; returns when the kernel has taken it, or that nobody will read it. Gives up when `monitor`, of
  the process that owns the pipe, reports its end, and when that process has interrupted it.
  """
  @spec write(t(), iodata(), reference()) :: :ok | {:error, :epipe | :closed}
  def write(pipe, data, monitor) do
    case IO.iodata_to_binary(data) do
      "" -> :ok
      data -> write_binary(pipe, data, monitor)
    end
  end

  defp write_binary(pipe, data, monitor) do
    tag = make_ref()

    case Native.pipe_write(pipe, data, tag) do
      {:ok, :again} ->
        # Order: nothing else tells the end of the owner, with whom the pipe is closed.
        receive do
          {:select, ^pipe, ^tag, _ready} -> write_binary(pipe, data, monitor)
          {__MODULE__, :interrupt, ^pipe} -> {:error, :closed}
          {:DOWN, ^monitor, :process, _owner, _reason} -> {:error, :closed}
        end

      {:ok, length} when length == byte_size(data) ->
        :ok

      {:ok, length} ->
        write_binary(pipe, binary_part(data, length, byte_size(data) - length), monitor)

      {:error, {:epipe, nil}} ->
        {:error, :epipe}

      {:error, _closed} ->
        {:error, :closed}
    end
  end

  @doc "Has a process that waits in `write/3` give up."
  @spec interrupt(t(), pid()) :: term()
  def interrupt(pipe, writer), do: send(writer, {__MODULE__, :interrupt, pipe})

  # A message that comes after the timeout has a tag that nobody waits for; `close/1` removes it.
  defp await(pipe, tag, timeout) do
    receive do
      {:select, ^pipe, ^tag, _ready} -> :ok
    after
      timeout -> :timeout
    end
  end

  @doc "Closes it. A message of it that has come meanwhile is removed."
  @spec close(t()) :: :ok
  def close(pipe) do
    Native.pipe_close(pipe)

    flush(pipe)
  end

  defp flush(pipe) do
    receive do
      {:select, ^pipe, _tag, _ready} -> flush(pipe)
    after
      0 -> :ok
    end
  end
end
