defmodule Snakepit.Worker.Lines do
  @moduledoc false

  # Output cut into lines. Not left to the socket (`packet: :line`), which throws away a last line that
  # has no newline: often the one that says why a program ended.

  # A longer line comes in pieces.
  @max_bytes 65_536

  @doc "The lines that are complete, each with its newline, and the beginning of the next."
  @spec split(binary(), binary()) :: {[binary()], binary()}
  def split(rest, data) do
    {lines, [last]} = (rest <> data) |> :binary.split("\n", [:global]) |> Enum.split(-1)
    lines = for line <- lines, do: line <> "\n"
    if byte_size(last) >= @max_bytes, do: {lines ++ [last], ""}, else: {lines, last}
  end
end
