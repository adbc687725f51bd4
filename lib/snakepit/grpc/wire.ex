defmodule Snakepit.GRPC.Wire do
  @moduledoc false

  # The wire format of Protocol Buffers, as far as `priv/proto/snakepit.proto` uses it.

  import Bitwise

  @varint 0
  @fixed64 1
  @bytes 2
  @fixed32 5

  @doc "Returns a field with an integer that is not negative."
  @spec integer(pos_integer(), non_neg_integer()) :: iodata()
  def integer(field, number), do: [varint(field <<< 3 ||| @varint), varint(number)]

  @doc "Returns a field with eight bytes."
  @spec double(pos_integer(), <<_::64>>) :: iodata()
  def double(field, packed), do: [varint(field <<< 3 ||| @fixed64), packed]

  @doc "Returns a field with bytes, a text, or a message."
  @spec bytes(pos_integer(), iodata()) :: iodata()
  def bytes(field, content),
    do: [varint(field <<< 3 ||| @bytes), varint(IO.iodata_length(content)), content]

  defp varint(number) when number < 128, do: <<number>>
  defp varint(number), do: [<<1::1, number::7>> | varint(number >>> 7)]

  @doc "Returns the fields of a message in their order. Throws `:malformed`."
  @spec fields!(binary()) :: [{pos_integer(), non_neg_integer() | binary()}]
  def fields!(""), do: []

  def fields!(message) do
    {tag, rest} = read(message)

    {value, rest} =
      case tag &&& 7 do
        @varint -> read(rest)
        @bytes -> with {length, rest} <- read(rest), do: take(rest, length)
        @fixed64 -> take(rest, 8)
        @fixed32 -> take(rest, 4)
        _of_the_past -> throw(:malformed)
      end

    [{tag >>> 3, value} | fields!(rest)]
  end

  defp take(bytes, length) when length <= byte_size(bytes),
    do: :erlang.split_binary(bytes, length)

  defp take(_cut, _length), do: throw(:malformed)

  defp read(bytes), do: read(bytes, 0, 0)

  defp read(<<0::1, part::7, rest::binary>>, number, shift),
    do: {(number ||| part <<< shift) &&& 0xFFFFFFFFFFFFFFFF, rest}

  defp read(<<1::1, part::7, rest::binary>>, number, shift) when shift < 63,
    do: read(rest, number ||| part <<< shift, shift + 7)

  defp read(_cut_or_too_long, _number, _shift), do: throw(:malformed)
end
