defmodule Snakepit.Terminal.DetachKey do
  @moduledoc false

  # The key, or keys, with which a person leaves a terminal, among what is typed.

  @enforce_keys [:key]
  defstruct [:key, held: ""]

  @typedoc "`held` is the beginning of it, which is passed on only when something else follows."
  @type t :: %__MODULE__{key: binary(), held: binary()}

  @doc "A key is the bytes that a terminal sends for it."
  @spec new(binary()) :: t()
  def new(key), do: %__MODULE__{key: key}

  @doc "Returns what is to be passed on; `:detach`, with what came before, if the key is among it."
  @spec filter(t(), binary()) :: {binary(), t()} | {:detach, binary()}
  def filter(%__MODULE__{key: key, held: held}, data) do
    data = held <> data

    case :binary.match(data, key) do
      {at, _length} -> {:detach, binary_part(data, 0, at)}
      :nomatch -> hold(key, data)
    end
  end

  defp hold(key, data) do
    length = min(byte_size(data), byte_size(key) - 1)
    kept = Enum.find(length..0//-1, &begins?(key, data, &1))
    passed = byte_size(data) - kept
    {binary_part(data, 0, passed), %__MODULE__{key: key, held: binary_part(data, passed, kept)}}
  end

  # Whether the last `length` bytes are the beginning of the key.
  defp begins?(key, data, length),
    do: binary_part(key, 0, length) == binary_part(data, byte_size(data), -length)
end
