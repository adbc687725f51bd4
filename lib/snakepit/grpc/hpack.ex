defmodule Snakepit.GRPC.HPACK do
  @moduledoc false

  # The coding of headers in HTTP/2 (RFC 7541). What is sent is always literal, in a form that changes no table. What is
  # received may be in any form.

  import Bitwise

  alias Snakepit.GRPC.Huffman

  # What an encoder may assume that nobody has told another size. Nothing here tells it.
  @table_size 4_096
  # An entry of the table counts as its two texts and this.
  @entry_overhead 32
  # Far more than a length or an index may be.
  @largest 0x7FFFFFFF

  @static [
            {":authority", ""},
            {":method", "GET"},
            {":method", "POST"},
            {":path", "/"},
            {":path", "/index.html"},
            {":scheme", "http"},
            {":scheme", "https"},
            {":status", "200"},
            {":status", "204"},
            {":status", "206"},
            {":status", "304"},
            {":status", "400"},
            {":status", "404"},
            {":status", "500"},
            {"accept-charset", ""},
            {"accept-encoding", "gzip, deflate"}
          ] ++
            for(
              name <-
                ~w(accept-language accept-ranges accept access-control-allow-origin age allow authorization
                   cache-control content-disposition content-encoding content-language content-length
                   content-location content-range content-type cookie date etag expect expires from host if-match
                   if-modified-since if-none-match if-range if-unmodified-since last-modified link location
                   max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server
                   set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate),
              do: {name, ""}
            )

  @static_table List.to_tuple(@static)
  @static_count length(@static)

  @enforce_keys [:entries, :size, :limit]
  defstruct [:entries, :size, :limit]

  @type header :: {name :: binary(), value :: binary()}

  @typedoc "What a decoder remembers from one block of headers to the next. The newest entry is the first."
  @type t :: %__MODULE__{
          entries: [header()],
          size: non_neg_integer(),
          limit: non_neg_integer()
        }

  @doc "Returns the decoder of a new connection."
  @spec new() :: t()
  def new, do: %__MODULE__{entries: [], size: 0, limit: @table_size}

  @doc "Returns a block of headers."
  @spec encode([header()]) :: iodata()
  def encode(headers), do: for({name, value} <- headers, do: [0, text(name), text(value)])

  defp text(text), do: [integer(byte_size(text), 127), text]

  defp integer(value, most) when value < most, do: <<value>>
  defp integer(value, most), do: [most | continued(value - most)]
  defp continued(value) when value < 128, do: [value]
  defp continued(value), do: [bor(value &&& 127, 128) | continued(value >>> 7)]

  @doc "Returns the headers of a block. After an `:error` the connection is of no use."
  @spec decode(t(), binary()) :: {:ok, [header()], t()} | :error
  def decode(%__MODULE__{} = decoder, block) do
    fields(block, decoder, [])
  catch
    :malformed -> :error
  end

  defp fields("", decoder, headers), do: {:ok, Enum.reverse(headers), decoder}

  defp fields(<<1::1, rest::bitstring>>, decoder, headers) do
    {index, rest} = number(rest, 7)
    fields(rest, decoder, [entry(decoder, index) | headers])
  end

  defp fields(<<0b01::2, rest::bitstring>>, decoder, headers) do
    {header, rest} = literal(rest, 6, decoder)
    fields(rest, add(decoder, header), [header | headers])
  end

  defp fields(<<0b001::3, rest::bitstring>>, decoder, headers) do
    {limit, rest} = number(rest, 5)
    if limit > @table_size, do: throw(:malformed)
    fields(rest, evict(%{decoder | limit: limit}), headers)
  end

  # Never to be indexed by anybody, or not by this one: the same to a receiver.
  defp fields(<<0b000::3, _never::1, rest::bitstring>>, decoder, headers) do
    {header, rest} = literal(rest, 4, decoder)
    fields(rest, decoder, [header | headers])
  end

  defp literal(bits, prefix, decoder) do
    {index, rest} = number(bits, prefix)

    {name, rest} = if index == 0, do: string(rest), else: {elem(entry(decoder, index), 0), rest}

    {value, rest} = string(rest)
    {{name, value}, rest}
  end

  defp string(<<coded::1, rest::bitstring>>) do
    {length, rest} = number(rest, 7)

    if length > byte_size(rest), do: throw(:malformed)
    {text, rest} = :erlang.split_binary(rest, length)
    {plain(coded, text), rest}
  end

  defp string(_cut), do: throw(:malformed)

  # A copy: the block that it is a part of is not to be kept with it.
  defp plain(0, text), do: :binary.copy(text)

  defp plain(1, text) do
    case Huffman.decode(text) do
      {:ok, text} -> text
      :error -> throw(:malformed)
    end
  end

  for prefix <- 4..7 do
    defp number(<<value::size(unquote(prefix)), rest::binary>>, unquote(prefix)),
      do: number(value, (1 <<< unquote(prefix)) - 1, rest)
  end

  defp number(value, most, rest),
    do: if(value < most, do: {value, rest}, else: more(rest, most, 0))

  defp more(<<1::1, part::7, rest::binary>>, value, shift) when shift < 28,
    do: more(rest, value + (part <<< shift), shift + 7)

  defp more(<<0::1, part::7, rest::binary>>, value, shift)
       when value + (part <<< shift) <= @largest,
       do: {value + (part <<< shift), rest}

  defp more(_cut_or_too_large, _value, _shift), do: throw(:malformed)

  defp entry(_decoder, index) when index in 1..@static_count//1,
    do: elem(@static_table, index - 1)

  defp entry(decoder, index) when index > @static_count,
    do: Enum.at(decoder.entries, index - @static_count - 1) || throw(:malformed)

  defp entry(_decoder, 0), do: throw(:malformed)

  defp add(decoder, header) do
    size = decoder.size + cost(header)
    evict(%{decoder | entries: [header | decoder.entries], size: size})
  end

  defp evict(%{size: size, limit: limit} = decoder) when size <= limit, do: decoder

  defp evict(decoder) do
    {oldest, entries} = List.pop_at(decoder.entries, -1)
    evict(%{decoder | entries: entries, size: decoder.size - cost(oldest)})
  end

  defp cost({name, value}), do: byte_size(name) + byte_size(value) + @entry_overhead
end
