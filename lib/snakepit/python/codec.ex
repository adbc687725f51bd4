defmodule Snakepit.Python.Codec do
  @moduledoc false

  # Terms as Python workers have them, and back: see the table in `Snakepit.Python`. The work is done by the NIF, on a
  # dirty scheduler if it turns out to be much.

  alias Snakepit.{Error, Native}

  # Below this, to write bytes through the pipe takes no longer than to make a file and map it.
  @memory_from 262_144
  @never 0xFFFFFFFFFFFF

  @typedoc "Memory files that a packet names: they are open until they are closed."
  @type files :: [reference()]

  @doc "From how many bytes on they travel in a memory file."
  @spec memory_from() :: pos_integer()
  def memory_from, do: @memory_from

  @doc "Returns a packet that begins with `head`. With `inline?` it names no memory files."
  @spec encode(binary(), term(), boolean()) :: {:ok, binary(), files()} | {:error, Error.t()}
  def encode(head, term, inline? \\ false) do
    beyond = if inline?, do: @never, else: @memory_from

    case Native.python_encode(head, term, beyond) do
      :large -> head |> Native.python_encode_large(term, beyond) |> encoded()
      answer -> encoded(answer)
    end
  end

  defp encoded({:ok, _packet, _files} = encoded), do: encoded

  defp encoded({:error, {:memory, reason}}) do
    detail = "a memory file cannot be made: #{Error.posix(reason)}"
    {:error, %Error{operation: :encode, reason: reason, detail: detail}}
  end

  defp encoded({:error, path, what, why}) do
    detail = at(way(path)) <> why <> shown(what)
    {:error, %Error{operation: :encode, reason: :einval, detail: detail}}
  end

  # The term is a request, in which the arguments are; those who call know these.
  defp way([{:index, index} | path]) when index in [1, 2], do: path
  defp way(path), do: path

  defp at([]), do: ""
  # The way to the bottom of something deep helps nobody.
  defp at(path) when length(path) > 64, do: ""
  defp at(path), do: "at #{Enum.map_join(path, &step/1)}: "

  defp step({:index, index}), do: "[#{index}]"
  defp step({:key, key}) when is_atom(key), do: ".#{key}"
  defp step({:key, key}), do: "[#{inspect(key, limit: 5, printable_limit: 80)}]"
  defp step({:inner, key}), do: " in the key #{inspect(key, limit: 5, printable_limit: 80)}"

  defp shown(nil), do: ""
  defp shown(what), do: ": #{inspect(what, limit: 5, printable_limit: 80)}"

  @doc "Closes memory files. Who has mapped them has them still."
  @spec close(files()) :: :ok
  def close([]), do: :ok
  def close(files), do: Native.memory_close(files)

  @doc "Returns the term of a message, and the descriptors of the worker that were mapped for it."
  @spec decode(binary()) :: {:ok, term(), [non_neg_integer()]} | {:error, Error.t()}
  def decode(message) do
    answer = with :large <- Native.python_decode(message), do: Native.python_decode_large(message)

    with {:error, reason} <- answer do
      detail = "the worker's answer cannot be read: #{describe(reason)}"
      {:error, %Error{operation: :decode, reason: reason, detail: detail}}
    end
  end

  defp describe(:cut), do: "it ends before it is complete"
  defp describe(:trailing), do: "there is more behind its end"
  defp describe(:malformed), do: "it is not MessagePack as snakepit_bridge writes it"
  defp describe(:too_deep), do: "it is nested too deeply"
  defp describe(posix), do: "its memory file cannot be mapped: #{Error.posix(posix)}"
end
