defmodule Snakepit.Metrics.Exposition do
  @moduledoc false

  # Metrics as the text that Prometheus reads. There are two formats: OpenMetrics, and the older text format of
  # Prometheus. They differ in where a counter has its `_total`, in the type of information, in units, and in the
  # end.

  alias Snakepit.Metrics.{Catalogue, Sample, Store}

  @type format :: :openmetrics | :prometheus

  @doc "Returns all metrics as text."
  @spec text(Store.t(), format()) :: iodata()
  def text(store, format) do
    # Order: first, as it adds CPU times.
    sample = Sample.take(store)
    rows = for scope <- [:run, :group, :pool], into: %{}, do: {scope, Store.rows(store, scope)}

    [
      for(
        family <- Catalogue.all(),
        do: [header(family, format), samples(family, rows, sample)]
      ),
      if(format == :openmetrics, do: "# EOF\n", else: "")
    ]
  end

  defp header(family, format) do
    name = family_name(family, format)

    [
      ["# TYPE ", name, " ", type(family.type, format), "\n"],
      if(format == :openmetrics and family.unit,
        do: ["# UNIT ", name, " ", family.unit, "\n"],
        else: []
      ),
      ["# HELP ", name, " ", escape(family.help), "\n"]
    ]
  end

  defp family_name(%{type: :counter, name: name}, :prometheus), do: [name, "_total"]
  defp family_name(%{type: :info, name: name}, :prometheus), do: [name, "_info"]
  defp family_name(%{name: name}, _format), do: name

  defp type(:info, :prometheus), do: "gauge"
  defp type(type, _format), do: Atom.to_string(type)

  defp samples(%{scope: :sampled} = family, _rows, sample) do
    for {labels, value} <- Map.get(sample, family.key, []),
        do: line(family, "", Enum.zip(family.labels, labels), value)
  end

  defp samples(%{type: :histogram} = family, rows, _sample) do
    for {member, row} <- rows[family.scope], do: histogram(family, own(family, member), row)
  end

  defp samples(%{label: nil} = family, rows, _sample) do
    for {member, row} <- rows[family.scope],
        do:
          line(family, "", own(family, member), counted(family, row, Catalogue.place(family.key)))
  end

  defp samples(%{label: {name, values}} = family, rows, _sample) do
    for {member, row} <- rows[family.scope], value <- values do
      labels = own(family, member) ++ [{name, Atom.to_string(value)}]
      line(family, "", labels, counted(family, row, Catalogue.place(family.key, value)))
    end
  end

  defp own(%{scope: :run}, nil), do: []
  defp own(%{scope: scope}, member), do: [{scope, member}]

  defp counted(%{unit: "seconds"}, row, place), do: :atomics.get(row, place) / 1_000_000
  defp counted(_family, row, place), do: :atomics.get(row, place)

  # The count is made of the buckets, so they agree whatever is counted meanwhile.
  defp histogram(family, labels, row) do
    first = Catalogue.place(family.key)
    bounds = Enum.map(family.buckets, &Float.to_string/1) ++ ["+Inf"]

    {lines, count} =
      bounds
      |> Enum.with_index(first)
      |> Enum.map_reduce(0, fn {bound, place}, count ->
        count = count + :atomics.get(row, place)
        {line(family, "_bucket", labels ++ [le: bound], count), count}
      end)

    sum = :atomics.get(row, first + Catalogue.sum(family.key)) / 1_000_000
    [lines, line(family, "_count", labels, count), line(family, "_sum", labels, sum)]
  end

  defp line(family, suffix, labels, value),
    do: [family.name, suffix(family.type, suffix), labels(labels), " ", number(value), "\n"]

  defp suffix(:counter, _suffix), do: "_total"
  defp suffix(:info, _suffix), do: "_info"
  defp suffix(_type, suffix), do: suffix

  defp labels([]), do: ""

  defp labels(labels) do
    pairs = for {name, value} <- labels, do: [Atom.to_string(name), "=\"", escape(value), "\""]
    ["{", Enum.intersperse(pairs, ","), "}"]
  end

  defp escape(text), do: String.replace(text, ["\\", "\"", "\n"], &escaped/1)
  defp escaped("\n"), do: "\\n"
  defp escaped(character), do: "\\" <> character

  defp number(value) when is_integer(value), do: Integer.to_string(value)
  defp number(value), do: Float.to_string(value)
end
