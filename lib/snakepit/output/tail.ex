defmodule Snakepit.Output.Tail do
  @moduledoc false

  # The end of what a process wrote, in bounded memory, for output that passes through the BEAM. The guardian
  # keeps the end of all other output.

  defstruct limit: 0, size: 0, parts: []

  @type t :: %__MODULE__{limit: non_neg_integer(), size: non_neg_integer(), parts: [binary()]}

  # What is shown to people; more is in telemetry and in `output_tail/1`.
  @shown_bytes 4_000

  @doc false
  def new(limit), do: %__MODULE__{limit: limit}

  @doc "Adds what came last. Old bytes are dropped once per limit, not once per part."
  def add(%__MODULE__{} = tail, data) do
    tail = %{tail | size: tail.size + byte_size(data), parts: [data | tail.parts]}
    if tail.size > 2 * tail.limit, do: new(tail.limit) |> put(content(tail)), else: tail
  end

  @doc "Returns the last bytes, oldest first."
  def content(%__MODULE__{} = tail) do
    tail.parts |> Enum.reverse() |> IO.iodata_to_binary() |> last(tail.limit)
  end

  @doc "Output as text for a log or an error: its end, valid and without a last newline."
  def text(output) do
    for part <- output |> last(@shown_bytes) |> String.trim_trailing() |> String.chunk(:valid),
        into: "",
        do: if(String.valid?(part), do: part, else: "\uFFFD")
  end

  # A copy, or it would keep the whole of what it is a part of.
  defp put(tail, data), do: %{tail | size: byte_size(data), parts: [:binary.copy(data)]}

  defp last(data, limit) when byte_size(data) <= limit, do: data
  defp last(data, limit), do: binary_part(data, byte_size(data) - limit, limit)
end
