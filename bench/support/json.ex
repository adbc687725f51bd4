defmodule Snakepit.Bench.JSON do
  @moduledoc """
  As much JSON as figures need. Elixir has had it since 1.18, and Snakepit runs on older ones.

  Objects are written from lists of pairs, in that order, and read as maps with strings as keys.
  """

  @doc "A term as JSON, on one line. A list of pairs is an object; an empty list is a list."
  @spec encode(term()) :: String.t()
  def encode(term), do: term |> Snakepit.JSON.encode() |> IO.iodata_to_binary()

  @doc "What a text says. Raises `ArgumentError` if it is not JSON."
  @spec decode!(String.t()) :: term()
  def decode!(text) do
    {value, rest} = text |> skip() |> value()
    if skip(rest) == "", do: value, else: refuse(rest)
  end

  defp value("{" <> rest), do: rest |> skip() |> object(%{})
  defp value("[" <> rest), do: rest |> skip() |> list([])
  defp value("\"" <> rest), do: string(rest, [])
  defp value("true" <> rest), do: {true, rest}
  defp value("false" <> rest), do: {false, rest}
  defp value("null" <> rest), do: {nil, rest}
  defp value(text), do: number(text)

  defp object("}" <> rest, map) when map == %{}, do: {map, rest}

  defp object("\"" <> rest, map) do
    {key, rest} = string(rest, [])
    {value, rest} = rest |> skip() |> expect(":") |> skip() |> value()
    map = Map.put(map, key, value)

    case skip(rest) do
      "," <> rest -> rest |> skip() |> object(map)
      "}" <> rest -> {map, rest}
      rest -> refuse(rest)
    end
  end

  defp object(text, _map), do: refuse(text)

  defp list("]" <> rest, []), do: {[], rest}

  defp list(text, values) do
    {value, rest} = value(text)

    case skip(rest) do
      "," <> rest -> rest |> skip() |> list([value | values])
      "]" <> rest -> {Enum.reverse([value | values]), rest}
      rest -> refuse(rest)
    end
  end

  defp string("\"" <> rest, said), do: {said |> Enum.reverse() |> IO.iodata_to_binary(), rest}

  defp string("\\u" <> <<code::binary-size(4), rest::binary>>, said),
    do: string(rest, [<<String.to_integer(code, 16)::utf8>> | said])

  defp string(<<?\\, char, rest::binary>>, said), do: string(rest, [unescape(char) | said])
  defp string(<<char::utf8, rest::binary>>, said), do: string(rest, [<<char::utf8>> | said])
  defp string(text, _said), do: refuse(text)

  defp unescape(char) when char in [?", ?\\, ?/], do: <<char>>
  defp unescape(?n), do: "\n"
  defp unescape(?t), do: "\t"
  defp unescape(?r), do: "\r"
  defp unescape(?b), do: "\b"
  defp unescape(?f), do: "\f"
  defp unescape(char), do: refuse(<<?\\, char>>)

  defp number(text) do
    with [digits | _] <- Regex.run(~r/^-?\d+(\.\d+)?([eE][-+]?\d+)?/, text),
         rest = String.replace_prefix(text, digits, ""),
         {number, ""} <- parse(digits) do
      {number, rest}
    else
      _ -> refuse(text)
    end
  end

  defp parse(digits) do
    if digits =~ ~r/^-?\d+$/, do: Integer.parse(digits), else: Float.parse(digits)
  end

  defp expect(text, start) do
    if String.starts_with?(text, start),
      do: String.replace_prefix(text, start, ""),
      else: refuse(text)
  end

  defp skip(text), do: String.trim_leading(text)

  defp refuse(text) do
    raise ArgumentError, "expected JSON, got: #{inspect(String.slice(text, 0, 40))}"
  end
end
