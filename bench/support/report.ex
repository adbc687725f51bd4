defmodule Snakepit.Bench.Report do
  @moduledoc """
  Rows, and what they were measured on, as a table for people and as JSON for programs.
  """

  alias Snakepit.Bench.{JSON, Machine}

  @columns [:name, :value, :unit, :baseline, :ratio, :target, :met]
  @left [:name, :unit, :target]

  @doc "An aligned table with a head."
  @spec table([Snakepit.Bench.row()]) :: String.t()
  def table(rows) do
    head = Map.new(@columns, &{&1, Atom.to_string(&1)})
    cells = [head | Enum.map(rows, fn row -> Map.new(@columns, &{&1, cell(row[&1])}) end)]

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

  @doc "What the figures were measured on, a fact per line."
  @spec head(Machine.facts()) :: String.t()
  def head(facts) do
    width = facts |> Enum.map(fn {name, _fact} -> width("#{name}") end) |> Enum.max()

    Enum.map_join(facts, "\n", fn {name, fact} ->
      String.pad_trailing("#{name}", width + 2) <> fact(fact)
    end)
  end

  defp fact(nil), do: "unknown"
  defp fact(list) when is_list(list), do: Enum.map_join(list, " ", &fact/1)
  defp fact(value), do: to_string(value)

  @doc "A JSON object with the facts and a list of rows, one per line."
  @spec json(Machine.facts(), [Snakepit.Bench.row()]) :: String.t()
  def json(facts, rows) do
    machine = Enum.map_join(facts, ",", fn fact -> "\n    " <> inner(fact) end)
    rows = Enum.map_join(rows, ",", fn row -> "\n    " <> JSON.encode(fields(row)) end)
    ~s({\n  "machine": {#{machine}\n  },\n  "rows": [#{rows}\n  ]\n}\n)
  end

  defp inner({name, fact}), do: "#{JSON.encode(name)}: #{JSON.encode(fact)}"

  defp fields(row), do: for(key <- @columns ++ [:ratios], do: {key, row[key]})
end
