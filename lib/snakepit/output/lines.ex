defmodule Snakepit.Output.Lines do
  @moduledoc false

  # Cuts a stream of bytes into lines. `packet: :line` of the socket is not used for this: it drops a last
  # line without a newline, which is often the one that says why a program ended.

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
  def split(%__MODULE__{} = lines, data) do
    case :binary.split(data, "\n", [:global]) do
      [piece] ->
        add(lines, piece, [])

      [first | others] ->
        {whole, [last]} = Enum.split(others, -1)
        complete = [join(lines, first) | whole]
        lines = new(lines.limit)

        case Enum.split_while(complete, &(byte_size(&1) < lines.limit)) do
          {fitting, []} -> add(lines, last, for(line <- fitting, do: line <> "\n"))
          {fitting, _too_long} -> {:too_long, for(line <- fitting, do: line <> "\n"), lines}
        end
    end
  end

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
