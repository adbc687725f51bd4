defmodule Snakepit.Options do
  @moduledoc false

  # Options of functions and of the configuration: checked, completed and documented from one schema.
  #
  #     @schema [
  #       size: [type: {:integer, 1, 65_536}, required: true, doc: "how many workers"],
  #       timeout: [type: :timeout, default: 5_000, doc: "how long a caller waits"]
  #     ]
  #
  # `:default` is the value of an option that is not given, and is always valid. An option without a default
  # is then missing from the result. `:doc` is Markdown, or `false` for an option that only Snakepit itself
  # passes. `:shown` replaces a default in the documentation that has to be described.
  #
  # Schemas are keyword lists, in the order in which they are documented: `Keyword.merge/2`, `Keyword.take/2`
  # and `++` make others of them.

  alias Snakepit.Options.Type

  @type schema :: [{atom(), entry()}]
  @type entry :: [
          type: Type.t(),
          required: boolean(),
          default: term(),
          shown: String.t(),
          doc: String.t() | false
        ]

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

    values =
      for {key, entry} <- schema, {:ok, value} <- [value!(given, key, entry, context)] do
        {key, value}
      end

    # At once: a map that grows by one key at a time is copied for each of them, and this is done for every call.
    Map.new(values)
  end

  @doc """
  Returns `value`, which is an option or an argument by itself. Raises `ArgumentError` if it is not of the
  type.

      iex> Snakepit.Options.check!(:sigfoo, :signal)
      ** (ArgumentError) expected a signal such as :sigterm or a number, got: :sigfoo

  """
  @spec check!(term(), Type.t(), atom()) :: term()
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
  def mismatch!(key, expected, given), do: refuse!(key, expected, given, "")

  @doc "Returns the schema with other defaults."
  @spec put_defaults(schema(), keyword()) :: schema()
  def put_defaults(schema, defaults) do
    Enum.reduce(defaults, schema, fn {key, default}, schema ->
      Keyword.update!(schema, key, &Keyword.put(&1, :default, default))
    end)
  end

  defp value!(given, key, entry, context) do
    default = Keyword.fetch(entry, :default)

    case with(:error <- Keyword.fetch(given, key), do: default) do
      :error ->
        if entry[:required],
          do: raise(ArgumentError, at(context) <> "the option #{inspect(key)} is required"),
          else: :error

      {:ok, value} = found ->
        # Options in an option have defaults of their own.
        if found === default and not match?({:options, _schema}, entry[:type]),
          do: found,
          else: {:ok, check!(value, entry[:type], key, context)}
    end
  end

  defp check!(value, {:options, schema}, key, context) do
    unless Keyword.keyword?(value), do: refuse!(key, "a keyword list", value, context)
    validate!(value, schema, if(context == "", do: "", else: context <> ", ") <> inspect(key))
  end

  defp check!(value, type, key, context) do
    case Type.verdict(type, value) do
      true -> value
      false -> refuse!(key, Type.phrase(type), value, context)
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

  # A list, and no table: people read it in a terminal as well.
  @width 98

  @doc """
  Returns the documentation of the options, for the Markdown of a module or function.

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
    text = "`#{inspect(key)}`#{default(entry)} - #{entry[:doc]}"
    # What is between backticks stays on one line.
    words = for [word] <- Regex.scan(~r/(?:`[^`]*`|\S)+/, text), do: word
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
