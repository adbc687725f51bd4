defmodule Snakepit.JSON do
  @moduledoc false

  # As much of RFC 8259 as writing takes. Elixir has had JSON since 1.18 and OTP since 27, and Snakepit runs on older ones.
  #
  # Maps and lists of pairs are objects, the latter in their order; an empty list is an array. Output of programs, and
  # whatever else comes from outside, need not be UTF-8: what is not becomes U+FFFD, as in a browser.

  @doc """
  Returns a term as JSON, on one line.

      iex> Snakepit.JSON.encode(%{"id" => "a\\n", "os_pids" => [1, 2], "usage" => nil}) |> IO.iodata_to_binary()
      ~S({"id":"a\\n","os_pids":[1,2],"usage":null})
      iex> Snakepit.JSON.encode(b: :running, a: 0.5) |> IO.iodata_to_binary()
      ~S({"b":"running","a":0.5})

  """
  @spec encode(term()) :: iodata()
  def encode(nil), do: "null"
  def encode(true), do: "true"
  def encode(false), do: "false"
  def encode(atom) when is_atom(atom), do: atom |> Atom.to_string() |> encode()
  def encode(number) when is_integer(number), do: Integer.to_string(number)
  def encode(number) when is_float(number), do: Float.to_string(number)
  def encode(text) when is_binary(text), do: [?", escape(text, text, 0, 0), ?"]
  def encode(map) when is_map(map), do: map |> Map.to_list() |> object()
  def encode([{_key, _value} | _] = pairs), do: object(pairs)
  def encode([]), do: "[]"

  def encode([first | rest]),
    do: [?[, encode(first), for(value <- rest, do: [?,, encode(value)]), ?]]

  defp object([]), do: "{}"
  defp object([first | rest]), do: [?{, pair(first), for(one <- rest, do: [?,, pair(one)]), ?}]

  defp pair({key, value}) when is_atom(key) or is_binary(key),
    do: [encode(to_string(key)), ?:, encode(value)]

  # What needs no escape is not copied: `all` is cut where something does, `from` is where the last cut was and `size`
  # how much has been passed since.
  defp escape(<<byte, rest::binary>>, all, from, size)
       when byte >= 0x20 and byte < 0x7F and byte != ?" and byte != ?\\,
       do: escape(rest, all, from, size + 1)

  defp escape(<<>>, all, 0, size) when size == byte_size(all), do: all
  defp escape(<<>>, all, from, size), do: binary_part(all, from, size)

  defp escape(<<byte, rest::binary>>, all, from, size) when byte < 0x80,
    do: [binary_part(all, from, size), control(byte) | escape(rest, all, from + size + 1, 0)]

  defp escape(<<char::utf8, rest::binary>>, all, from, size),
    do: escape(rest, all, from, size + byte_size(<<char::utf8>>))

  defp escape(<<_byte, rest::binary>>, all, from, size),
    do: [binary_part(all, from, size), "\uFFFD" | escape(rest, all, from + size + 1, 0)]

  defp control(?"), do: ~S(\")
  defp control(?\\), do: ~S(\\)
  defp control(?\n), do: ~S(\n)
  defp control(?\t), do: ~S(\t)
  defp control(?\r), do: ~S(\r)
  defp control(byte), do: ["\\u00" | Base.encode16(<<byte>>)]
end
