defmodule Snakepit.Options do
  @moduledoc false

  # What a function or the configuration may be given: checked, completed and documented from one schema.
  #
  #     @schema [
  #       size: [type: {:integer, 1, 65_536}, required: true, doc: "how many workers"],
  #       timeout: [type: :timeout, default: 5_000, doc: "how long a caller waits"]
  #     ]
  #
  # `:default` is what an option has that is not given, and is always valid; an option without one is then
  # missing from the result. `:doc` is Markdown, or `false` for an option that only Snakepit itself gives.
  # `:shown` stands in the documentation in the place of a default that has to be described.
  #
  # Schemas are keyword lists, in the order in which they are documented: `Keyword.merge/2`,
  # `Keyword.take/2` and `++` make others of them.

  alias Snakepit.Native

  # Some weeks. A timer can wait for it, and for what a call may take on top of it.
  @longest_ms 0x7FFFFFFF

  @type schema :: [{atom(), entry()}]
  @type entry :: [
          type: type(),
          required: boolean(),
          default: term(),
          shown: String.t(),
          doc: String.t() | false
        ]

  @typedoc """
  What a value may be.

  A duration is `:milliseconds`, or `{:milliseconds, least}`, or a `:timeout`, which may be `:infinity`.
  The fourth element of an `:integer` is what is counted. A `:tagged` value is a pair of the tag and a value
  of the type, which people read as the word. `:options` have a schema of their own.

  A `:custom` check may say what exactly is wrong: then it returns what was expected and the part of the
  value that is not.
  """
  @type type ::
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
          | {:tagged, atom(), type(), String.t()}
          | {:or, [type()]}
          | {:options, schema()}
          | {:custom, (term() -> verdict()), String.t()}

  @type verdict :: boolean() | {expected :: String.t(), given :: term()}

  @doc """
  Returns all options of the schema, as a map. Raises `ArgumentError` for what the schema does not allow;
  `context` says where that was, if the key alone does not.

      iex> schema = [timeout: [type: :milliseconds, default: 5_000], force: [type: :boolean, default: false]]
      iex> Snakepit.Options.validate!([force: true], schema)
      %{force: true, timeout: 5_000}
      iex> Snakepit.Options.validate!([time_out: 1], schema)
      ** (ArgumentError) unknown option :time_out, expected one of [:timeout, :force]; did you mean :timeout?

  """
  @spec validate!(keyword(), schema(), String.t()) :: %{atom() => term()}
  def validate!(given, schema, context \\ "") do
    keyword!(given, context)

    for {key, _value} <- given, not Keyword.has_key?(schema, key) do
      raise ArgumentError, at(context) <> unknown(key, Keyword.keys(schema))
    end

    for {key, entry} <- schema, {:ok, value} <- [value!(given, key, entry, context)], into: %{} do
      {key, value}
    end
  end

  @doc """
  Returns `value`, which is an option or an argument by itself. Raises `ArgumentError` if it is not of the
  type.

      iex> Snakepit.Options.check!(:sigfoo, :signal)
      ** (ArgumentError) expected a signal such as :sigterm or a number, got: :sigfoo

  """
  @spec check!(term(), type(), atom()) :: term()
  def check!(value, type, key \\ nil), do: check!(value, type, key, "")

  @doc "Raises `ArgumentError` for what is no keyword list, and so no options at all."
  @spec keyword!(term(), String.t()) :: :ok
  def keyword!(given, context \\ "") do
    unless Keyword.keyword?(given) do
      raise ArgumentError,
            at(context) <> "expected options as a keyword list, got: #{inspect(given)}"
    end

    :ok
  end

  @doc "Raises the `ArgumentError` for a value that is wrong beside the others."
  @spec mismatch!(atom(), String.t(), term()) :: no_return()
  def mismatch!(key, expected, given) do
    raise ArgumentError, "expected #{inspect(key)} to be #{expected}, got: #{inspect(given)}"
  end

  @doc "The schema with other defaults."
  @spec put_defaults(schema(), keyword()) :: schema()
  def put_defaults(schema, defaults) do
    Enum.reduce(defaults, schema, fn {key, default}, schema ->
      Keyword.update!(schema, key, &Keyword.put(&1, :default, default))
    end)
  end

  defp value!(given, key, entry, context) do
    with :error <- Keyword.fetch(given, key),
         :error <- Keyword.fetch(entry, :default) do
      if entry[:required],
        do: raise(ArgumentError, at(context) <> "the option #{inspect(key)} is required"),
        else: :error
    else
      # An option that holds others has to be completed all the same.
      {:ok, value} ->
        complete? = match?({:options, _schema}, entry[:type])

        if not complete? and Keyword.fetch(entry, :default) == {:ok, value},
          do: {:ok, value},
          else: {:ok, check!(value, entry[:type], key, context)}
    end
  end

  defp check!(value, {:options, schema}, key, context) do
    unless Keyword.keyword?(value), do: refuse!(key, "a keyword list", value, context)
    validate!(value, schema, if(context == "", do: "", else: context <> ", ") <> inspect(key))
  end

  defp check!(value, type, key, context) do
    case verdict(type, value) do
      true -> value
      false -> refuse!(key, phrase(type), value, context)
      {expected, given} -> refuse!(key, expected, given, context)
    end
  end

  defp refuse!(key, expected, given, context) do
    what = if key, do: "#{inspect(key)} to be #{expected}", else: expected
    raise ArgumentError, at(context) <> "expected #{what}, got: #{inspect(given)}"
  end

  defp at(""), do: ""
  defp at(context), do: context <> ": "

  defp unknown(key, known) do
    text = "unknown option #{inspect(key)}, expected one of #{inspect(known, limit: :infinity)}"

    case nearest(key, known) do
      nil -> text
      nearest -> text <> "; did you mean #{inspect(nearest)}?"
    end
  end

  # Below this, two names have little more than some letters in common.
  @alike 0.8

  defp nearest(key, known) do
    likeness = &String.jaro_distance(Atom.to_string(key), Atom.to_string(&1))
    nearest = Enum.max_by(known, likeness, fn -> nil end)
    if nearest && likeness.(nearest) >= @alike, do: nearest
  end

  # Whether a value is of a type, and below what people read where it is not.

  @spec verdict(type(), term()) :: verdict()
  defp verdict(:boolean, value), do: is_boolean(value)
  defp verdict(:pid, value), do: is_pid(value)
  defp verdict(:keyword, value), do: Keyword.keyword?(value)
  defp verdict(:string, value), do: is_binary(value) and value != ""
  defp verdict(:path, value), do: verdict(:string, value) and without_nul(value)

  defp verdict(:text, value) do
    cond do
      not verdict(:string, value) -> false
      not String.valid?(value) -> {"text in UTF-8", value}
      true -> without_nul(value)
    end
  end

  defp verdict(:name, {:global, _name}), do: true
  defp verdict(:name, {:via, module, _name}), do: is_atom(module)
  defp verdict(:name, name), do: is_atom(name)

  defp verdict(:iodata, value) when is_binary(value), do: true

  defp verdict(:iodata, value) when is_list(value) do
    is_integer(IO.iodata_length(value))
  rescue
    ArgumentError -> false
  end

  defp verdict(:iodata, _value), do: false
  defp verdict(:signal, value), do: Native.signal_valid(value)
  defp verdict(:milliseconds, value), do: verdict({:milliseconds, 0}, value)
  defp verdict({:milliseconds, least}, value), do: verdict({:integer, least, @longest_ms}, value)
  defp verdict(:timeout, value), do: value == :infinity or verdict(:milliseconds, value)

  # An integer is less than an atom, and so than `:infinity`.
  defp verdict({:integer, least, most}, value),
    do: is_integer(value) and value >= least and value <= most

  defp verdict({:integer, least, most, _unit}, value), do: verdict({:integer, least, most}, value)
  defp verdict({:one_of, choices}, value), do: value in choices
  defp verdict({:function, arities}, value), do: Enum.any?(arities, &is_function(value, &1))
  defp verdict({:tagged, tag, type, _word}, {tag, value}), do: verdict(type, value)
  defp verdict({:tagged, _tag, _type, _word}, _value), do: false
  defp verdict({:custom, valid?, _phrase}, value), do: valid?.(value)

  # One that comes close knows better what is wrong than all of them together.
  defp verdict({:or, types}, value) do
    verdicts = Enum.map(types, &verdict(&1, value))
    true in verdicts or Enum.find(verdicts, false, &is_tuple/1)
  end

  @doc "Whether a text can be passed to the kernel, as the verdict of a check."
  @spec without_nul(binary()) :: verdict()
  def without_nul(text),
    do: :binary.match(text, <<0>>) == :nomatch or {"text without NUL bytes", text}

  @doc "What a value of the type is called in a sentence."
  @spec phrase(type()) :: String.t()
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

  # A list, and no table: people read it in a terminal as well.
  @width 98

  @doc """
  The documentation of the options, for the Markdown of a module or function.

      iex> schema = [timeout: [type: :milliseconds, default: 5_000, doc: "how long it may take"]]
      iex> Snakepit.Options.docs(schema)
      "  * `:timeout` (5000 ms) - how long it may take"

  """
  @spec docs(schema()) :: String.t()
  def docs(schema), do: docs(schema, "  ")

  defp docs(schema, indent) do
    for({key, entry} <- schema, entry[:doc], do: item(key, entry, indent)) |> Enum.join("\n")
  end

  defp item(key, entry, indent) do
    words = String.split("`#{inspect(key)}`#{default(entry)} - #{entry[:doc]}")
    item = indent <> "* " <> wrap(words, indent <> "  ")

    case entry[:type] do
      {:options, schema} -> item <> "\n\n" <> docs(schema, indent <> "    ") <> "\n"
      _other -> item
    end
  end

  defp default(entry) do
    cond do
      entry[:required] -> " (required)"
      entry[:shown] -> " (#{entry[:shown]})"
      match?({:options, _schema}, entry[:type]) or entry[:default] == nil -> ""
      duration?(entry[:type]) and is_integer(entry[:default]) -> " (#{entry[:default]} ms)"
      true -> " (`#{inspect(entry[:default])}`)"
    end
  end

  defp duration?(type),
    do: type in [:milliseconds, :timeout] or match?({:milliseconds, _least}, type)

  defp wrap(words, indent) do
    {lines, line} =
      Enum.reduce(words, {[], ""}, fn
        word, {lines, ""} ->
          {lines, word}

        word, {lines, line} ->
          longer = line <> " " <> word

          if String.length(indent <> longer) > @width,
            do: {[line | lines], word},
            else: {lines, longer}
      end)

    [line | lines] |> Enum.reverse() |> Enum.join("\n" <> indent)
  end
end
