defmodule Snakepit.Bench.Report do
  @moduledoc """
  Rows, and what they were measured on, as a table for people and as JSON for programs.
  """

  alias Snakepit.Bench.{JSON, Machine}

  @columns [:name, :value, :unit, :baseline, :ratio, :interval, :target, :verdict]
  @left [:name, :unit, :interval, :target, :verdict]

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
  defp cell(:missed), do: "MISSED"
  defp cell(verdict) when is_atom(verdict), do: Atom.to_string(verdict)
  defp cell({low, high}), do: "#{cell(low)} to #{cell(high)}"
  defp cell(text) when is_binary(text), do: text
  defp cell(number), do: :erlang.float_to_binary(number / 1, decimals: decimals(abs(number)))

  defp decimals(size) when size >= 100, do: 0
  defp decimals(size) when size >= 10, do: 1
  defp decimals(size) when size >= 1, do: 2
  defp decimals(_size), do: 3

  @doc """
  Figures that were measured at several sizes: a table per kind of size, with a line per size and a
  column for each figure and for what it was measured beside. None, if there are no such figures.
  """
  @spec sizes([Snakepit.Bench.row()]) :: [String.t()]
  def sizes(rows) do
    for {{of, unit}, rows} <- groups(rows) do
      # What was measured beside two others is listed once.
      columns = rows |> Enum.flat_map(&[{&1.scale.figure, nil}, column(&1)]) |> Enum.uniq()
      head = for {figure, beside} <- columns, do: beside || "#{figure}, #{unit}"
      sizes = rows |> Enum.map(& &1.scale.size) |> Enum.uniq() |> Enum.sort()

      lines =
        for size <- sizes do
          at = for row <- rows, row.scale.size == size, figure <- both(row), into: %{}, do: figure
          ["#{size}" | Enum.map(columns, &cell(at[&1]))]
        end

      markdown([[of | head] | lines])
    end
  end

  @doc "A sentence about each target that is missed or undecided, with what it was decided by."
  @spec verdicts([Snakepit.Bench.row()]) :: [String.t()]
  def verdicts(rows) do
    for verdict <- [:missed, :undecided], %{verdict: ^verdict} = row <- rows, do: sentence(row)
  end

  defp sentence(%{bound: {kind, _}, verdict: verdict} = row) do
    interval = row.interval && " (#{cell(row.interval)})"
    said = verdict |> Atom.to_string() |> String.upcase()

    "#{said}: #{row.name}: #{kind} #{cell(row[kind])}#{interval}, target #{row.target}" <>
      noise(row) <> if(row.quiet, do: "", else: "; the machine was not quiet")
  end

  defp noise(%{spread: nil}), do: ""
  defp noise(%{spread: spread}), do: "; the baseline varied by #{round(100 * spread)} %"

  # In the order in which they were measured.
  defp groups(rows) do
    rows = for %{scale: %{}} = row <- rows, do: row
    keys = rows |> Enum.map(&{&1.scale.of, &1.unit}) |> Enum.uniq()
    for key <- keys, do: {key, Enum.filter(rows, &({&1.scale.of, &1.unit} == key))}
  end

  defp column(row), do: {row.scale.figure, row.scale.beside}

  defp both(row), do: [{{row.scale.figure, nil}, row.value}, {column(row), row.baseline}]

  defp markdown([head | lines]) do
    rule = for _ <- head, do: "---"
    Enum.map_join([head, rule | lines], "\n", &"| #{Enum.join(&1, " | ")} |")
  end

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

  # What was saved before has no interval, and needs none: it has its rounds.
  defp fields(row) do
    for key <- @columns ++ [:better, :ratios, :spread, :quiet], do: {key, field(row[key])}
  end

  defp field({low, high}), do: [low, high]
  defp field(value), do: value
end
