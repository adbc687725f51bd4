defmodule Snakepit.GRPC.Frame do
  @moduledoc false

  # The frames of HTTP/2 (RFC 9113, section 6), taken apart and put together.

  import Bitwise

  alias Snakepit.GRPC.HPACK

  # What a peer may send that nobody has allowed more.
  @largest 16_384

  @preface "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

  @types [
    data: 0x0,
    headers: 0x1,
    priority: 0x2,
    reset: 0x3,
    settings: 0x4,
    push: 0x5,
    ping: 0x6,
    goaway: 0x7,
    window: 0x8,
    continuation: 0x9
  ]

  @settings [
    initial_window: 0x4,
    max_frame: 0x5,
    max_streams: 0x3,
    enable_push: 0x2,
    max_headers: 0x6
  ]

  @type t ::
          {:data, id :: pos_integer(), binary(), counted :: non_neg_integer(), last? :: boolean()}
          | {:headers, pos_integer(), block :: binary(), whole? :: boolean(), last? :: boolean()}
          | {:continuation, pos_integer(), block :: binary(), whole? :: boolean()}
          | {:reset, pos_integer(), code :: non_neg_integer()}
          | {:settings, [{atom(), non_neg_integer()}]}
          | {:ping, binary()}
          | {:goaway, last_id :: non_neg_integer(), code :: non_neg_integer(), text :: binary()}
          | {:window, non_neg_integer(), pos_integer()}
          | :ignored

  @doc "Returns the next frame and what follows it, `:more` if it is not there yet, or what is wrong with it."
  @spec next(binary()) :: {:ok, t(), binary()} | :more | {:error, String.t()}
  def next(<<length::24, _rest::binary>>) when length > @largest,
    do: {:error, "a frame of #{length} bytes, where #{@largest} are allowed"}

  def next(<<length::24, type, flags, _::1, id::31, payload::binary-size(length), rest::binary>>) do
    case parse(type, flags, id, payload) do
      {:error, text} -> {:error, text}
      frame -> {:ok, frame, rest}
    end
  end

  def next(_part), do: :more

  for {name, number} <- @types, do: defp(type(unquote(name)), do: unquote(number))
  for {name, number} <- @types, do: defp(name(unquote(number)), do: unquote(name))
  defp name(_other), do: :unknown

  defp parse(type, flags, id, payload), do: payload(name(type), flags, id, payload)

  # Whatever is between frame and data counts against the windows too.
  defp payload(:data, flags, id, payload) when id > 0 do
    with {:ok, data} <- unpad(flags, payload),
         do: {:data, id, data, byte_size(payload), set?(flags, 0x1)}
  end

  defp payload(:headers, flags, id, payload) when id > 0 do
    with {:ok, block} <- unpad(flags, payload),
         {:ok, block} <- without_priority(flags, block),
         do: {:headers, id, block, set?(flags, 0x4), set?(flags, 0x1)}
  end

  defp payload(:continuation, flags, id, block) when id > 0,
    do: {:continuation, id, block, set?(flags, 0x4)}

  defp payload(:reset, _flags, id, <<code::32>>) when id > 0, do: {:reset, id, code}

  defp payload(:settings, flags, 0, payload) do
    cond do
      set?(flags, 0x1) and payload == "" -> :ignored
      set?(flags, 0x1) or rem(byte_size(payload), 6) != 0 -> malformed(:settings)
      true -> {:settings, settings(payload)}
    end
  end

  defp payload(:ping, flags, 0, <<opaque::binary-8>>),
    do: if(set?(flags, 0x1), do: :ignored, else: {:ping, opaque})

  defp payload(:goaway, _flags, 0, <<_::1, last::31, code::32, text::binary>>),
    do: {:goaway, last, code, text}

  defp payload(:window, _flags, id, <<_::1, increment::31>>) when increment > 0,
    do: {:window, id, increment}

  defp payload(type, _flags, _id, _payload) when type in [:priority, :unknown], do: :ignored
  defp payload(type, _flags, _id, _payload), do: malformed(type)

  defp malformed(type), do: {:error, "a malformed frame (#{type})"}

  defp set?(flags, bit), do: (flags &&& bit) != 0

  defp unpad(flags, payload) do
    if set?(flags, 0x8) do
      with <<padding, rest::binary>> <- payload,
           size when size >= 0 <- byte_size(rest) - padding do
        {:ok, binary_part(rest, 0, size)}
      else
        _longer_than_the_frame -> malformed(:padding)
      end
    else
      {:ok, payload}
    end
  end

  defp without_priority(flags, block) do
    case {set?(flags, 0x20), block} do
      {false, block} -> {:ok, block}
      {true, <<_priority::40, block::binary>>} -> {:ok, block}
      {true, _too_short} -> malformed(:headers)
    end
  end

  defp settings(payload) do
    for <<number::16, value::32 <- payload>>,
        {name, ^number} <- [List.keyfind(@settings, number, 1)],
        do: {name, value}
  end

  @doc "Returns what a client begins a connection with."
  @spec preface([{atom(), non_neg_integer()}]) :: iodata()
  def preface(settings) do
    payload = for {name, value} <- settings, do: <<@settings[name]::16, value::32>>
    [@preface, frame(:settings, 0, 0, payload)]
  end

  @doc "Returns the frames of a block of headers, which others follow for the same stream."
  @spec headers(pos_integer(), [HPACK.header()], pos_integer()) :: iodata()
  def headers(id, headers, max_frame) do
    [first | rest] = headers |> HPACK.encode() |> IO.iodata_to_binary() |> pieces(max_frame)

    case Enum.reverse(rest) do
      [] ->
        frame(:headers, 0x4, id, first)

      [last | between] ->
        between = for piece <- Enum.reverse(between), do: frame(:continuation, 0, id, piece)
        [frame(:headers, 0, id, first), between, frame(:continuation, 0x4, id, last)]
    end
  end

  defp pieces(block, size) when byte_size(block) <= size, do: [block]

  defp pieces(block, size) do
    {piece, rest} = :erlang.split_binary(block, size)
    [piece | pieces(rest, size)]
  end

  @doc "Returns a frame of data."
  @spec data(pos_integer(), iodata(), boolean()) :: iodata()
  def data(id, data, last?), do: frame(:data, if(last?, do: 0x1, else: 0), id, data)

  @doc "Returns the frame that ends a stream before its time."
  @spec reset(pos_integer(), non_neg_integer()) :: iodata()
  def reset(id, code), do: frame(:reset, 0, id, <<code::32>>)

  @doc "Returns the frame by which a peer may send so many bytes more; the stream 0 is the connection."
  @spec window(non_neg_integer(), pos_integer()) :: iodata()
  def window(id, increment), do: frame(:window, 0, id, <<increment::32>>)

  @doc "Returns the answer to a ping."
  @spec pong(binary()) :: iodata()
  def pong(opaque), do: frame(:ping, 0x1, 0, opaque)

  @doc "Returns the frame that says that settings have been applied."
  @spec settings_applied() :: iodata()
  def settings_applied, do: frame(:settings, 0x1, 0, "")

  @doc "Returns the frame with which a client leaves."
  @spec goaway(non_neg_integer()) :: iodata()
  def goaway(code), do: frame(:goaway, 0, 0, <<0::32, code::32>>)

  defp frame(type, flags, id, payload),
    do: [<<IO.iodata_length(payload)::24, type(type), flags, id::32>>, payload]
end
