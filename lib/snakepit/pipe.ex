defmodule Snakepit.Pipe do
  @moduledoc false

  # This BEAM's end of a pipe to or from a program. Reading and writing wait in a `receive` of the caller: no
  # scheduler waits, and what is not read yet makes the program wait. A pipe is closed when the process that made
  # it dies.

  alias Snakepit.Native

  @type t :: reference()

  @doc "Returns what there is to read, at least a byte; `:closed` at the end of it; `:timeout`."
  @spec read(t(), timeout()) :: {:ok, binary()} | :closed | :timeout
  def read(pipe, timeout) do
    tag = make_ref()

    case Native.pipe_read(pipe, tag) do
      {:ok, :eof} -> :closed
      {:ok, :again} -> with :ok <- await(pipe, tag, timeout), do: read(pipe, timeout)
      {:ok, data} -> {:ok, data}
      # By its owner, or with it.
      {:error, _closed} -> :closed
    end
  end

  @doc """
  Writes all of it; returns when the kernel has taken it, or that nobody will read it. Gives up when `monitor`, of
  the process that owns the pipe, reports its end.
  """
  @spec write(t(), iodata(), reference()) :: :ok | {:error, :closed}
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
          {:DOWN, ^monitor, :process, _owner, _reason} -> {:error, :closed}
        end

      {:ok, length} when length == byte_size(data) ->
        :ok

      {:ok, length} ->
        write_binary(pipe, binary_part(data, length, byte_size(data) - length), monitor)

      {:error, _closed} ->
        {:error, :closed}
    end
  end

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
