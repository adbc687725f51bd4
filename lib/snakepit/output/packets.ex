defmodule Snakepit.Output.Packets do
  @moduledoc false

  # Cuts a stream of bytes into packets that have their length before them, in 1, 2 or 4 bytes, the highest first.

  @enforce_keys [:header, :limit, :needed]
  defstruct [:header, :limit, :needed, size: 0, parts: []]

  @typedoc """
  The beginning of a packet: its pieces, the last one first, of which nothing can be cut before there are `needed`
  bytes. They are joined once, so a long packet costs no more than its length.
  """
  @type t :: %__MODULE__{
          header: 1 | 2 | 4,
          limit: pos_integer(),
          needed: pos_integer(),
          size: non_neg_integer(),
          parts: [binary()]
        }

  @doc "Packets with so many bytes of length before them, none of which may be longer than `limit`."
  @spec new(1 | 2 | 4, pos_integer()) :: t()
  def new(header, limit), do: %__MODULE__{header: header, limit: limit, needed: header}

  @doc "Returns the packets that `data` completes; `:too_long` with those before it if one exceeds the limit."
  @spec split(t(), binary()) :: {:ok | :too_long, [binary()], t()}
  def split(%__MODULE__{} = packets, data) do
    size = packets.size + byte_size(data)
    parts = [data | packets.parts]

    if size < packets.needed,
      do: {:ok, [], %{packets | size: size, parts: parts}},
      else: cut(packets, join(parts), [])
  end

  defp join([data]), do: data
  defp join(parts), do: parts |> Enum.reverse() |> IO.iodata_to_binary()

  defp cut(%{header: header, limit: limit} = packets, data, complete) do
    case length_of(data, header) do
      {length, _rest} when length > limit ->
        {:too_long, Enum.reverse(complete), new(header, limit)}

      {length, rest} when byte_size(rest) >= length ->
        packet = binary_part(rest, 0, length)
        rest = binary_part(rest, length, byte_size(rest) - length)
        cut(packets, rest, [packet | complete])

      {length, _rest} ->
        {:ok, Enum.reverse(complete), begun(packets, data, header + length)}

      :part ->
        {:ok, Enum.reverse(complete), begun(packets, data, header)}
    end
  end

  # The size is a literal in each: of a variable, Elixir 1.20 wants another notation than 1.14 knows.
  defp length_of(<<length::8, rest::binary>>, 1), do: {length, rest}
  defp length_of(<<length::16, rest::binary>>, 2), do: {length, rest}
  defp length_of(<<length::32, rest::binary>>, 4), do: {length, rest}
  defp length_of(_part_of_a_length, _header), do: :part

  defp begun(packets, "", needed), do: %{packets | parts: [], size: 0, needed: needed}

  defp begun(packets, data, needed),
    do: %{packets | parts: [data], size: byte_size(data), needed: needed}

  @doc "Returns the packet with its length before it."
  @spec frame(binary(), 1 | 2 | 4) :: iodata()
  def frame(packet, header), do: [<<byte_size(packet)::size(header)-unit(8)>>, packet]
end
