defmodule Snakepit.Cmd.Output do
  @moduledoc false

  # What a program writes: its output as it is collected, its errors if they are wanted, and how much that is.

  alias Snakepit.Output.{Lines, Tail}

  # What an error shows of the output.
  @tail_bytes 4_000

  @enforce_keys [:acc, :collector, :max, :lines, :tail]
  defstruct @enforce_keys ++ [size: 0, errors: []]

  @type t :: %__MODULE__{
          acc: term(),
          collector: function(),
          max: non_neg_integer() | :infinity,
          lines: Lines.t() | nil,
          tail: Tail.t(),
          size: non_neg_integer(),
          errors: [binary()]
        }

  @doc "Opens the collection, which may fail."
  @spec new(map()) :: t()
  def new(own) do
    {acc, collector} = Collectable.into(own.into)

    %__MODULE__{
      acc: acc,
      collector: collector,
      max: own.max_output || :infinity,
      lines: if(own.lines, do: Lines.new(:infinity)),
      tail: Tail.new(@tail_bytes)
    }
  end

  @doc "Adds a piece, or of the piece what there is room for."
  @spec add(t(), :stdout | :stderr, binary()) :: {:ok | :max_output, t()}
  def add(output, stream, data) do
    size = output.size + byte_size(data)
    # An integer is less than an atom.
    if size > output.max do
      fits = binary_part(data, 0, output.max - output.size)
      {:max_output, put(%{output | size: output.max}, stream, fits)}
    else
      {:ok, put(%{output | size: size}, stream, data)}
    end
  end

  defp put(output, :stderr, data), do: %{output | errors: [data | output.errors]}

  defp put(%{lines: nil} = output, :stdout, data),
    do: collect(%{output | tail: Tail.add(output.tail, data)}, data)

  defp put(output, :stdout, data) do
    {:ok, complete, lines} = Lines.split(output.lines, data)
    output = %{output | lines: lines, tail: Tail.add(output.tail, data)}
    Enum.reduce(complete, output, &collect(&2, without_newline(&1)))
  end

  defp collect(output, data), do: %{output | acc: output.collector.(output.acc, {:cont, data})}

  # As for a port that is asked for lines.
  defp without_newline(line) do
    size = byte_size(line)

    if size > 1 and :binary.at(line, size - 2) == ?\r,
      do: binary_part(line, 0, size - 2),
      else: binary_part(line, 0, size - 1)
  end

  @doc "Ends the collection and returns it."
  @spec done(t()) :: Collectable.t()
  def done(%{lines: nil} = output), do: output.collector.(output.acc, :done)

  def done(output) do
    rest = Lines.rest(output.lines)
    output = if rest == "", do: output, else: collect(output, rest)
    output.collector.(output.acc, :done)
  end

  @doc "Gives the collection up."
  @spec halt(t()) :: term()
  def halt(output), do: output.collector.(output.acc, :halt)

  @doc "The end of the output."
  @spec tail(t()) :: binary()
  def tail(output), do: Tail.content(output.tail)

  @doc "The errors: all of them if they were captured, or else what the guardian has kept."
  @spec errors(t(), binary()) :: binary()
  def errors(%{errors: []}, kept), do: kept
  def errors(%{errors: errors}, _kept), do: errors |> Enum.reverse() |> IO.iodata_to_binary()

  @doc "What says why a program has failed: its errors, or else the end of its output."
  @spec last_words(t(), binary()) :: binary()
  def last_words(output, kept) do
    case errors(output, kept) do
      "" -> tail(output)
      errors -> Tail.new(@tail_bytes) |> Tail.add(errors) |> Tail.content()
    end
  end
end
