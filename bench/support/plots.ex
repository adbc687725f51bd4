defmodule Snakepit.Bench.Plots do
  @moduledoc """
  Figures as pictures; `script/lib/plot.py` draws them.
  """

  alias Snakepit.Bench.JSON

  @script Path.expand("../../script/plot", __DIR__)
  @missed "#b00020"
  @title_width 52

  @doc """
  Writes `scale.png` and `targets.png`, and what they were drawn from. If there is nothing to draw,
  nothing is written. Gives the paths of the pictures, or why there are none.
  """
  @spec write([Snakepit.Bench.row()], String.t(), Path.t()) ::
          {:ok, [Path.t()]} | {:error, String.t()}
  def write(rows, machine, directory) do
    pictures =
      for {name, title, [_ | _] = panels} <- [
            {"scale", "Figures over size", scale(rows)},
            {"targets", "Figures and their targets, round by round", targets(rows)}
          ],
          do: {Path.join(directory, name), [title: title, subtitle: machine, panels: panels]}

    Enum.reduce_while(pictures, {:ok, []}, fn {path, picture}, {:ok, done} ->
      case draw(path, picture) do
        :ok -> {:cont, {:ok, done ++ [path <> ".png"]}}
        {:error, reason} -> {:halt, {:error, reason}}
      end
    end)
  end

  defp draw(path, picture) do
    File.write!(path <> ".json", JSON.encode(picture))

    case System.cmd(@script, [path <> ".json", path <> ".png"], stderr_to_stdout: true) do
      {_output, 0} -> :ok
      {output, status} -> {:error, "script/plot ended with #{status}: #{output}"}
    end
  end

  @doc "A panel per figure that has sizes; Snakepit and what it was measured beside over the size."
  @spec scale([Snakepit.Bench.row()]) :: [keyword()]
  def scale(rows) do
    rows = for %{scale: %{}} = row <- rows, do: row

    for figure <- rows |> Enum.map(& &1.scale.figure) |> Enum.uniq() do
      rows = Enum.filter(rows, &(&1.scale.figure == figure))
      others = rows |> Enum.map(& &1.scale.beside) |> Enum.uniq()

      [
        title: figure,
        # There is no zero on a logarithmic axis.
        x: [label: hd(rows).scale.of, log: Enum.all?(rows, &(&1.scale.size > 0))],
        y: [label: hd(rows).unit, from_zero: true, log: wide?(rows)],
        series: [line("Snakepit", rows, & &1.value) | Enum.map(others, &beside(&1, rows))]
      ]
    end
  end

  # Growth shows on a logarithmic axis, differences within one order of magnitude on a plain one.
  defp wide?(rows) do
    {least, most} = rows |> Enum.flat_map(&[&1.value, &1.baseline]) |> Enum.min_max()
    most > 10 * least
  end

  defp beside(other, rows),
    do: line(other, Enum.filter(rows, &(&1.scale.beside == other)), & &1.baseline)

  # Beside two others the value is in two rows, and is drawn once.
  defp line(label, rows, figure) do
    points = for row <- rows, do: [row.scale.size, figure.(row)]
    [label: label, style: "both", points: Enum.uniq_by(points, &hd/1)]
  end

  @doc "A panel per row that has a target."
  @spec targets([Snakepit.Bench.row()]) :: [keyword()]
  def targets(rows) do
    for %{bound: {kind, bound}} = row <- rows do
      figures = figures(kind, row)
      colour = if row.verdict == :missed, do: [color: @missed], else: []
      measured = for {figure, round} <- Enum.with_index(figures, 1), do: [round, figure]
      # A little longer, so that it is a line beside a single point too.
      required = [[0.5, bound], [length(figures) + 0.5, bound]]

      [
        title: wrapped(row.name),
        x: [label: if(length(figures) > 1, do: "round", else: "")],
        y: [label: label(kind, row), from_zero: true],
        series: [
          [label: "measured", style: "both", points: measured] ++ colour,
          [label: row.target, style: "dashed", points: required]
        ]
      ]
    end
  end

  defp figures(:ratio, %{ratios: [], ratio: ratio}), do: [ratio]
  defp figures(:ratio, %{ratios: ratios}), do: ratios
  defp figures(:value, %{value: value}), do: [value]

  defp label(:ratio, _row), do: "ratio"
  defp label(:value, row), do: row.unit

  defp wrapped(name) do
    name
    |> String.split()
    |> Enum.chunk_while(
      "",
      fn word, line ->
        longer = String.trim_leading("#{line} #{word}")

        if String.length(longer) > @title_width,
          do: {:cont, line, word},
          else: {:cont, longer}
      end,
      fn line -> {:cont, line, ""} end
    )
    |> Enum.join("\n")
  end
end
