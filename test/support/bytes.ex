defmodule Snakepit.Test.Bytes do
  @moduledoc """
  Binaries of which a part is another. Without a match on a size that was known before it: Elixir 1.20
  wants a pin there, and 1.14 knows none.
  """

  @doc "The bytes, with others from a position on."
  @spec overwrite(binary(), non_neg_integer(), binary()) :: binary()
  def overwrite(bytes, at, part) do
    rest = at + byte_size(part)
    binary_part(bytes, 0, at) <> part <> binary_part(bytes, rest, byte_size(bytes) - rest)
  end

  @doc "The bytes, with some bits of one of them the other way round."
  @spec flip(binary(), non_neg_integer(), 1..255) :: binary()
  def flip(bytes, at, mask),
    do: overwrite(bytes, at, <<Bitwise.bxor(:binary.at(bytes, at), mask)>>)
end
