defmodule Snakepit.Bench.Report do
  @moduledoc """
  Rows as a table for people and as JSON for programs.
  """

  @columns [:name, :value, :unit, :baseline, :ratio, :target, :met]
  @left [:name, :unit, :target]

  @doc "An aligned table with a head."
  @spec table([Snakepit.Bench.row()]) :: String.t()
  def table(rows) do
    head = Map.new(@columns, &{&1, Atom.to_string(&1)})
    cells = [head | Enum.map(rows, &Map.new(&1, fn {key, value} -> {key, cell(value)} end))]

    widths =
      Map.new(@columns, fn key -> {key, cells |> Enum.map(&width(&1[key])) |> Enum.max()} end)

    Enum.map_join(cells, "\n", fn row ->
      @columns |> Enum.map_join("  ", &pad(&1, row[&1], widths[&1])) |> String.trim_trailing()
    end)
  end

  defp width(text), do: String.length(text)

  defp pad(key, text, width) when key in @left, do: String.pad_trailing(text, width)
  defp pad(_key, text, width), do: String.pad_leading(text, width)

  defp cell(nil), do: ""
  defp cell(true), do: "yes"
  defp cell(false), do: "NO"
  defp cell(text) when is_binary(text), do: text
  defp cell(number), do: :erlang.float_to_binary(number / 1, decimals: decimals(abs(number)))

  defp decimals(size) when size >= 100, do: 0
  defp decimals(size) when size >= 10, do: 1
  defp decimals(size) when size >= 1, do: 2
  defp decimals(_size), do: 3

  @doc "A JSON list with an object per row and line."
  @spec json([Snakepit.Bench.row()]) :: String.t()
  def json(rows) do
    objects =
      Enum.map(rows, fn row ->
        "{" <> Enum.map_join(@columns, ", ", &~s("#{&1}": #{encode(row[&1])})) <> "}"
      end)

    "[" <> Enum.map_join(objects, ",", &("\n  " <> &1)) <> "\n]\n"
  end

  defp encode(value) when is_nil(value), do: "null"
  defp encode(value) when is_boolean(value) or is_number(value), do: to_string(value)
  defp encode(text), do: ~s("#{text |> String.to_charlist() |> Enum.map_join(&escape/1)}")

  defp escape(char) when char in [?", ?\\], do: <<?\\, char>>
  defp escape(char) when char < 0x20, do: "\\u00" <> Base.encode16(<<char>>)
  defp escape(char), do: <<char::utf8>>
end
