defmodule Snakepit.Options.Type do
  @moduledoc false

  # The types of options: the check of each, and its description in documentation and error messages.

  alias Snakepit.Native

  # Some weeks. A timer can wait for it, and for what a call may take on top of it.
  @longest_ms 0x7FFFFFFF

  @typedoc """
  What a value may be.

  A duration is `:milliseconds`, or `{:milliseconds, least}`, or a `:timeout`, which may be `:infinity`.
  The fourth element of an `:integer` is what is counted. A `:tagged` value is a pair of the tag and a value
  of the type, which people read as the word. `:options` have a schema of their own.

  A `:custom` check may say what exactly is wrong: then it returns what was expected and the part of the
  value that is not.
  """
  @type t ::
          :boolean
          | :pid
          | :string
          | :text
          | :path
          | :name
          | :iodata
          | :signal
          | :milliseconds
          | :timeout
          | :keyword
          | {:milliseconds, non_neg_integer()}
          | {:integer, integer(), integer() | :infinity}
          | {:integer, integer(), integer() | :infinity, String.t()}
          | {:one_of, [term()]}
          | {:function, [arity()]}
          | {:tagged, atom(), t(), String.t()}
          | {:or, [t()]}
          | {:options, Snakepit.Options.schema()}
          | {:custom, (term() -> verdict()), String.t()}

  @type verdict :: boolean() | {expected :: String.t(), given :: term()}

  @doc "Returns whether a value is of the type, or what exactly is wrong with it."
  @spec verdict(t(), term()) :: verdict()
  def verdict(:boolean, value), do: is_boolean(value)
  def verdict(:pid, value), do: is_pid(value)
  def verdict(:keyword, value), do: Keyword.keyword?(value)
  def verdict(:string, value), do: is_binary(value) and value != ""
  def verdict(:path, value), do: verdict(:string, value) and without_nul(value)

  def verdict(:text, value) do
    cond do
      not verdict(:string, value) -> false
      not String.valid?(value) -> {"text in UTF-8", value}
      true -> without_nul(value)
    end
  end

  def verdict(:name, {:global, _name}), do: true
  def verdict(:name, {:via, module, _name}), do: is_atom(module)
  def verdict(:name, name), do: is_atom(name)

  def verdict(:iodata, value) when is_binary(value), do: true

  def verdict(:iodata, value) when is_list(value) do
    is_integer(IO.iodata_length(value))
  rescue
    ArgumentError -> false
  end

  def verdict(:iodata, _value), do: false
  def verdict(:signal, value), do: Native.signal_valid(value)
  def verdict(:milliseconds, value), do: verdict({:milliseconds, 0}, value)
  def verdict({:milliseconds, least}, value), do: verdict({:integer, least, @longest_ms}, value)
  def verdict(:timeout, value), do: value == :infinity or verdict(:milliseconds, value)

  # An integer is less than an atom, and so than `:infinity`.
  def verdict({:integer, least, most}, value),
    do: is_integer(value) and value >= least and value <= most

  def verdict({:integer, least, most, _unit}, value), do: verdict({:integer, least, most}, value)
  def verdict({:one_of, choices}, value), do: value in choices
  def verdict({:function, arities}, value), do: Enum.any?(arities, &is_function(value, &1))
  def verdict({:tagged, tag, type, _word}, {tag, value}), do: verdict(type, value)
  def verdict({:tagged, _tag, _type, _word}, _value), do: false
  def verdict({:custom, valid?, _phrase}, value), do: valid?.(value)

  # One that comes close knows better what is wrong than all of them together.
  def verdict({:or, types}, value) do
    verdicts = Enum.map(types, &verdict(&1, value))
    true in verdicts or Enum.find(verdicts, false, &is_tuple/1)
  end

  @doc "Returns whether a text can be passed to the kernel, as the verdict of a check."
  @spec without_nul(binary()) :: verdict()
  def without_nul(text),
    do: :binary.match(text, <<0>>) == :nomatch or {"text without NUL bytes", text}

  @doc "Returns how a sentence calls a value of the type."
  @spec phrase(t()) :: String.t()
  def phrase(type) do
    case alternatives(type) do
      [phrase] -> phrase
      phrases -> Enum.join(Enum.drop(phrases, -1), ", ") <> " or " <> List.last(phrases)
    end
  end

  defp alternatives({:or, types}), do: Enum.flat_map(types, &alternatives/1)
  defp alternatives({:one_of, choices}), do: Enum.map(choices, &inspect/1)
  defp alternatives(:boolean), do: ["true", "false"]
  defp alternatives(:timeout), do: alternatives(:milliseconds) ++ [":infinity"]
  defp alternatives(:pid), do: ["a pid"]
  defp alternatives(:keyword), do: ["a keyword list"]
  defp alternatives({:options, _schema}), do: ["a keyword list"]
  defp alternatives(:string), do: ["a non-empty string"]
  defp alternatives(:text), do: ["a non-empty string"]
  defp alternatives(:path), do: ["a path"]
  defp alternatives(:name), do: ["a name as for GenServer"]
  defp alternatives(:iodata), do: ["iodata"]
  defp alternatives(:signal), do: ["a signal such as :sigterm or a number"]
  defp alternatives(:milliseconds), do: alternatives({:milliseconds, 0})

  defp alternatives({:milliseconds, least}),
    do: alternatives({:integer, least, @longest_ms, "milliseconds"})

  defp alternatives({:integer, least, most}), do: ["an integer #{range(least, most)}"]

  defp alternatives({:integer, least, most, unit}),
    do: ["a number of #{unit} #{range(least, most)}"]

  defp alternatives({:function, [0]}), do: ["a function without arguments"]
  defp alternatives({:function, [1]}), do: ["a function of one argument"]
  defp alternatives({:function, [0, 1]}), do: ["a function of no or one argument"]
  defp alternatives({:tagged, tag, _type, word}), do: ["{#{inspect(tag)}, #{word}}"]
  defp alternatives({:custom, _valid?, phrase}), do: [phrase]

  defp range(least, :infinity), do: "of #{least} or more"
  defp range(least, most), do: "from #{least} to #{most}"
end
