defmodule Snakepit.Output.Buffer do
  @moduledoc false

  # Output that has been read and that nobody has taken yet: bytes, or pieces that are lines or packets.

  defstruct [:kind, size: 0, parts: [], clear: 0, pieces: :queue.new(), ended?: false]

  @typedoc """
  Of bytes: `parts`, the last one first, of `size` together, and of which the first `clear` bytes contain no
  newline. They are joined when something is taken, so that what is waited for costs no more than its length.
  """
  @type t :: %__MODULE__{
          kind: :bytes | :pieces,
          size: non_neg_integer(),
          parts: [binary()],
          clear: non_neg_integer(),
          pieces: :queue.queue(binary()),
          ended?: boolean()
        }

  @typedoc "What there is or the next piece, so many bytes, or a line."
  @type what :: :any | pos_integer() | :line

  @doc "For bytes, or for pieces that stay as they are."
  @spec new(:bytes | :pieces) :: t()
  def new(kind), do: %__MODULE__{kind: kind}

  @doc "Adds what came last."
  @spec add(t(), [binary()]) :: t()
  def add(%__MODULE__{kind: :pieces} = buffer, pieces),
    do: %{buffer | pieces: Enum.reduce(pieces, buffer.pieces, &:queue.in/2)}

  def add(%__MODULE__{} = buffer, pieces) do
    for piece <- pieces, piece != "", reduce: buffer do
      buffer -> %{buffer | size: buffer.size + byte_size(piece), parts: [piece | buffer.parts]}
    end
  end

  @doc "Nothing will be added any more."
  @spec finish(t()) :: t()
  def finish(buffer), do: %{buffer | ended?: true}

  @doc "Whether there is nothing in it."
  @spec empty?(t()) :: boolean()
  def empty?(buffer), do: buffer.size == 0 and :queue.is_empty(buffer.pieces)

  @doc """
  Takes what is wanted; `:more` if that is not there yet, and `:eof` if it will not come. At the end the rest counts
  as a line, or as that many bytes. Bytes without a newline that are as long as `limit` are `:too_long` for a line.
  """
  @spec take(t(), what(), pos_integer() | :infinity) ::
          {:ok, binary(), t()} | {:more | :eof | :too_long, t()}
  def take(buffer, what, limit \\ :infinity)

  def take(%__MODULE__{kind: :pieces} = buffer, _any_or_line, _limit) do
    case :queue.out(buffer.pieces) do
      {{:value, piece}, pieces} -> {:ok, piece, %{buffer | pieces: pieces}}
      {:empty, _none} -> nothing(buffer)
    end
  end

  def take(%__MODULE__{size: 0} = buffer, _what, _limit), do: nothing(buffer)
  def take(buffer, :any, _limit), do: first(buffer, buffer.size)

  def take(%{size: size} = buffer, count, _limit) when is_integer(count) do
    cond do
      count <= size -> first(buffer, count)
      buffer.ended? -> first(buffer, size)
      true -> {:more, buffer}
    end
  end

  def take(%{size: size} = buffer, :line, limit) do
    case newline(buffer.parts, size, buffer.clear) do
      at when is_integer(at) and at < limit -> first(buffer, at + 1)
      at when is_integer(at) or size >= limit -> {:too_long, buffer}
      nil when buffer.ended? -> first(buffer, size)
      nil -> {:more, %{buffer | clear: size}}
    end
  end

  defp nothing(%{ended?: true} = buffer), do: {:eof, buffer}
  defp nothing(buffer), do: {:more, buffer}

  defp first(buffer, count) do
    data = join(buffer.parts)
    left = buffer.size - count
    parts = if left == 0, do: [], else: [binary_part(data, count, left)]
    clear = max(buffer.clear - count, 0)
    {:ok, piece(data, count), %{buffer | parts: parts, size: left, clear: clear}}
  end

  # A copy of what is small, or whoever keeps it would keep all the rest.
  defp piece(data, count) when 2 * count < byte_size(data),
    do: data |> binary_part(0, count) |> :binary.copy()

  defp piece(data, count), do: binary_part(data, 0, count)

  defp join([data]), do: data
  defp join(parts), do: parts |> Enum.reverse() |> IO.iodata_to_binary()

  # The position of the first one behind the bytes that are known to have none. Only later parts are searched, and
  # the oldest of them counts.
  defp newline(_parts, size, clear) when size <= clear, do: nil

  defp newline([part | older], size, clear) do
    start = size - byte_size(part)
    newline(older, start, clear) || newline_in(part, start, max(clear - start, 0))
  end

  defp newline_in(part, start, from) do
    case :binary.match(part, "\n", scope: {from, byte_size(part) - from}) do
      {at, 1} -> start + at
      :nomatch -> nil
    end
  end
end
