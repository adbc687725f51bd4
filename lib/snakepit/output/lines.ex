defmodule Snakepit.Output.Lines do
  @moduledoc false

  # Cuts a stream of bytes into lines. A last line without a newline is one as well, and often the one that says why a
  # program ended.

  alias Snakepit.Native

  # More than any chunk has.
  @any_length 0x7FFFFFFF

  @enforce_keys [:limit]
  defstruct [:limit, size: 0, parts: []]

  @typedoc """
  The beginning of a line: its pieces, the last one first, none of which contains a newline. Only new
  bytes are searched, so a long line costs no more than its length.
  """
  @type t :: %__MODULE__{
          limit: pos_integer() | :infinity,
          size: non_neg_integer(),
          parts: [binary()]
        }

  @doc "No line may be longer than `limit` bytes, its newline included."
  @spec new(pos_integer()) :: t()
  def new(limit), do: %__MODULE__{limit: limit}

  @doc """
  Returns the lines that `data` completes, each with its newline; `:too_long` with the lines before it if
  a line exceeds the limit.
  """
  @spec split(t(), binary()) :: {:ok | :too_long, [binary()], t()}
  def split(%__MODULE__{parts: []} = lines, data), do: cut(lines, data, 0, [])

  def split(%__MODULE__{} = lines, data) do
    case :binary.match(data, "\n") do
      :nomatch ->
        add(lines, data, [])

      {at, 1} ->
        first = join(lines, binary_part(data, 0, at + 1))
        lines = %{lines | size: 0, parts: []}

        if byte_size(first) <= lines.limit,
          do: cut(lines, data, at + 1, [[first]]),
          else: {:too_long, [], lines}
    end
  end

  # `before` are the groups of lines that were found before, the last one first.
  defp cut(lines, data, from, before) do
    {found, next, state} = Native.lines_cut(data, from, most(lines))
    groups = [found | before]

    case state do
      :rest -> add(lines, part(data, next), all(groups))
      :too_long -> {:too_long, all(groups), lines}
      :more -> cut(lines, data, next, groups)
    end
  end

  defp all([found]), do: found
  defp all(groups), do: groups |> Enum.reverse() |> Enum.concat()

  defp most(%{limit: :infinity}), do: @any_length
  defp most(%{limit: limit}), do: limit

  # A copy, or it would keep all the lines before it.
  defp part(data, 0), do: data
  defp part(data, from), do: data |> binary_part(from, byte_size(data) - from) |> :binary.copy()

  @doc "Returns the line that has no newline yet; `\"\"` if there is none."
  @spec rest(t()) :: binary()
  def rest(lines), do: join(lines, "")

  @doc "As `split/2`, for output that is only passed on: a line beyond the limit comes in pieces."
  @spec split_or_cut(t(), binary()) :: {[binary()], t()}
  def split_or_cut(%__MODULE__{limit: limit} = lines, data) do
    {_ok, complete, lines} = split(%{lines | limit: :infinity}, data)

    if lines.size >= limit,
      do: {complete ++ [rest(lines)], new(limit)},
      else: {complete, %{lines | limit: limit}}
  end

  defp add(lines, "", complete), do: {:ok, complete, lines}

  defp add(lines, piece, complete) do
    size = lines.size + byte_size(piece)

    if size < lines.limit,
      do: {:ok, complete, %{lines | size: size, parts: [piece | lines.parts]}},
      else: {:too_long, complete, new(lines.limit)}
  end

  defp join(%{parts: []}, last), do: last
  defp join(lines, last), do: [last | lines.parts] |> Enum.reverse() |> IO.iodata_to_binary()
end
