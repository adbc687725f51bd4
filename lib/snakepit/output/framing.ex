defmodule Snakepit.Output.Framing do
  @moduledoc false

  # How a stream of bytes is cut: into lines, into packets, or not at all.

  alias Snakepit.Output.{Lines, Packets}

  @typedoc "The beginning of a line or packet; `{:cut, lines}` where a line that is too long comes in pieces."
  @type t :: nil | Lines.t() | {:cut, Lines.t()} | Packets.t()

  @doc "For a stream that is cut in this way, into what is at most `limit` bytes long."
  @spec new(:raw | :line | :cut_line | 1 | 2 | 4 | nil, pos_integer()) :: t()
  def new(:line, limit), do: Lines.new(limit)
  def new(:cut_line, limit), do: {:cut, Lines.new(limit)}
  def new(header, limit) when is_integer(header), do: Packets.new(header, limit)
  def new(_raw, _limit), do: nil

  @doc "Returns the pieces that `data` completes; `:too_long` with those before it if one exceeds the limit."
  @spec cut(t(), binary()) :: {:ok | :too_long, [binary()], t()}
  def cut(nil, data), do: {:ok, [data], nil}
  def cut(%Lines{} = lines, data), do: Lines.split(lines, data)
  def cut(%Packets{} = packets, data), do: Packets.split(packets, data)

  def cut({:cut, lines}, data) do
    {pieces, lines} = Lines.split_or_cut(lines, data)
    {:ok, pieces, {:cut, lines}}
  end

  @doc "What is left at the end: a last line without a newline is one too, and half a packet is none."
  @spec rest(t()) :: [binary()]
  def rest({:cut, lines}), do: rest(lines)
  def rest(%Lines{} = lines), do: for(rest <- [Lines.rest(lines)], rest != "", do: rest)
  def rest(_packets_or_bytes), do: []
end
