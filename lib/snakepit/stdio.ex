defmodule Snakepit.Stdio do
  @moduledoc false

  # Where the standard streams of a program lead, and this BEAM's ends of those that lead here.

  alias Snakepit.Pipe

  defstruct input: :null,
            output: :tail,
            error: :merged,
            terminal: nil,
            modes: {true, false},
            token: nil

  @typedoc """
  `terminal` is its size, as rows and columns; there are no other streams then. `modes` are whether it shows what is
  typed, and whether it is raw. `token` is what the guardian knows
  the program's ends by, once they have been passed to it.
  """
  @type t :: %__MODULE__{
          input: :null | :inherit | :pipe,
          output: :tail | :null | :inherit | :pipe,
          error: :tail | :null | :inherit | :pipe | :merged,
          terminal: {pos_integer(), pos_integer()} | nil,
          modes: {echo :: boolean(), raw :: boolean()},
          token: binary() | nil
        }

  defmodule Ends do
    @moduledoc false
    # Of a terminal, input and output are the same.
    defstruct [:input, :output, :error]

    @type t :: %__MODULE__{
            input: Pipe.t() | nil,
            output: Pipe.t() | nil,
            error: Pipe.t() | nil
          }
  end

  @doc "Returns which of input, output and error are pipes."
  @spec pipes(t()) :: {boolean(), boolean(), boolean()}
  def pipes(stdio), do: {stdio.input == :pipe, stdio.output == :pipe, stdio.error == :pipe}

  @doc "Returns what the guardian is told of the `:stdio` of a `Snakepit.Command`."
  @spec to_request(t() | term()) :: tuple()
  def to_request(:tail), do: streams(:null, :tail, :tail)
  def to_request(:null), do: streams(:null, :null, :null)
  def to_request(:inherit), do: streams(:inherit, :inherit, :inherit)
  def to_request({:file, path}), do: streams(:null, {:file, path, false}, :merged)
  def to_request({:file, path, :truncate}), do: streams(:null, {:file, path, true}, :merged)
  def to_request({:pipe, token}), do: streams(:passed, :passed, :tail, token)
  def to_request({:stream, token}), do: streams(:passed, :passed, :merged, token)

  def to_request(%__MODULE__{terminal: nil} = stdio),
    do: streams(passed(stdio.input), passed(stdio.output), passed(stdio.error), stdio.token)

  def to_request(%__MODULE__{token: token}), do: {:terminal, token}

  defp passed(:pipe), do: :passed
  defp passed(other), do: other

  defp streams(input, output, error, token \\ nil),
    do: {:streams, %{input: input, output: output, error: error, token: token}}

  @doc "Closes this BEAM's ends."
  @spec close(Ends.t()) :: :ok
  def close(%Ends{} = ends) do
    for pipe <- Enum.uniq([ends.input, ends.output, ends.error]),
        pipe != nil,
        do: Pipe.close(pipe)

    :ok
  end
end
