defmodule Snakepit.Worker.Readers do
  @moduledoc false

  # Those who wait for the output of a worker's process, in the order in which they came. Nothing here has an effect.

  alias Snakepit.Output.Buffer

  defstruct waiting: :queue.new()

  @typedoc "A reader by its reference, who it is, and what it wants."
  @type reader :: {reference(), GenServer.from(), Buffer.what()}
  @type t :: %__MODULE__{waiting: :queue.queue(reader())}

  @type answer :: {:ok, binary()} | :eof | :too_long

  @doc "Adds one behind the others."
  @spec add(t(), reader()) :: t()
  def add(readers, reader), do: %{readers | waiting: :queue.in(reader, readers.waiting)}

  @doc "One has given up or is gone. Returns it, unless it has been served."
  @spec remove(t(), reference()) :: {reader() | nil, t()}
  def remove(readers, ref) do
    {gone, others} = readers.waiting |> :queue.to_list() |> Enum.split_with(&(elem(&1, 0) == ref))
    {List.first(gone), %{readers | waiting: :queue.from_list(others)}}
  end

  @doc "Whether somebody waits."
  @spec any?(t()) :: boolean()
  def any?(readers), do: not :queue.is_empty(readers.waiting)

  @doc "All of them."
  @spec all(t()) :: [reader()]
  def all(readers), do: :queue.to_list(readers.waiting)

  @doc "Serves as many as there is output for, in their order: one that waits for more keeps the others waiting."
  @spec serve(t(), Buffer.t(), pos_integer()) :: {[{reader(), answer()}], t(), Buffer.t()}
  def serve(readers, buffer, limit), do: serve(readers, buffer, limit, [])

  defp serve(readers, buffer, limit, served) do
    case :queue.out(readers.waiting) do
      {:empty, _none} ->
        {Enum.reverse(served), readers, buffer}

      {{:value, {_ref, _from, what} = reader}, others} ->
        case Buffer.take(buffer, what, limit) do
          {:more, buffer} ->
            {Enum.reverse(served), readers, buffer}

          {:ok, data, buffer} ->
            serve(%{readers | waiting: others}, buffer, limit, [{reader, {:ok, data}} | served])

          {answer, buffer} ->
            serve(%{readers | waiting: others}, buffer, limit, [{reader, answer} | served])
        end
    end
  end
end
