defmodule Snakepit.GRPC.Huffman do
  @moduledoc false

  # The Huffman code of HPACK (RFC 7541, appendix B). It is canonical: codes of one length follow each other in the
  # order of their symbols, and shorter codes come first. So the lengths say all. Symbol 256 is the end of the string,
  # of which only the first bits occur, as padding.

  @lengths [
             # 0..31, control characters
             ~w(13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28),
             # 32..63, signs and digits
             ~w(6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10),
             # 64..95, capital letters
             ~w(13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6),
             # 96..127, small letters
             ~w(15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28),
             # 128..159
             ~w(20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24),
             # 160..191
             ~w(22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23),
             # 192..223
             ~w(26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27),
             # 224..256
             ~w(20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30)
           ]
           |> List.flatten()
           |> Enum.map(&String.to_integer/1)

  @codes @lengths
         |> Enum.with_index()
         |> Enum.sort()
         |> Enum.map_reduce({0, 0}, fn {length, symbol}, {code, before} ->
           code = Bitwise.bsl(code, length - before)
           {{symbol, code, length}, {code + 1, length}}
         end)
         |> elem(0)

  # The end of the last byte: ones, and less than a byte.
  @paddings for size <- 0..7, do: <<Bitwise.bsl(1, size) - 1::size(size)>>

  @doc "Returns the bytes that are coded, or `:error`."
  @spec decode(binary()) :: {:ok, binary()} | :error
  def decode(coded), do: decode(coded, [])

  # From the shortest code on: those of frequent symbols are tried first.
  for {symbol, code, length} <- @codes, symbol < 256 do
    defp decode(<<unquote(code)::size(unquote(length)), rest::bitstring>>, decoded),
      do: decode(rest, [unquote(symbol) | decoded])
  end

  defp decode(padding, decoded) when padding in @paddings,
    do: {:ok, decoded |> Enum.reverse() |> :erlang.list_to_binary()}

  defp decode(_other, _decoded), do: :error
end
