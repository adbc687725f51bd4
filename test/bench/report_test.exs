defmodule Snakepit.Bench.ReportTest do
  use ExUnit.Case, async: true

  import Snakepit.Bench, only: [row: 1]

  alias Snakepit.Bench.{JSON, Report}

  @rounds [{1.0, 2.0}, {2.0, 2.0}, {4.0, 2.0}]

  test "a table has a line per row, whatever the rows hold besides" do
    rows = [
      row(name: "start", unit: "ms", rounds: @rounds, target: {:ratio, 0.4}),
      row(name: "rate", unit: "1/s", value: 250, better: :higher, scale: scale(10, "loop"))
    ]

    assert Report.table(rows) == """
           name   value  unit  baseline  ratio  interval       target        verdict
           start   2.00  ms        2.00   1.00  0.500 to 2.00  ratio <= 0.4  MISSED
           rate     250  1/s\
           """
  end

  test "what is missed and what is undecided has a sentence, with the noise of its baseline" do
    rows = [
      row(name: "met", unit: "ms", rounds: @rounds, target: {:ratio, 2}),
      row(name: "close", unit: "ms", rounds: @rounds, target: {:ratio, 1.5}),
      row(name: "memory", unit: "MB", value: 3, target: {:value, 2.5})
    ]

    assert Report.verdicts(rows) == [
             "MISSED: memory: value 3.00, target value <= 2.5",
             "UNDECIDED: close: ratio 1.00 (0.500 to 2.00), target ratio <= 1.5; the baseline varied by 0 %"
           ]
  end

  test "figures over a size are a table with a line per size" do
    at = fn size, value, beside ->
      row(name: "", unit: "ms", value: value, baseline: 1, scale: scale(size, beside))
    end

    rows = [at.(0, 2, "loop"), at.(1000, 30, "loop"), at.(0, 2, "port")]

    assert Report.sizes([row(name: "alone", unit: "ms", value: 1) | rows]) == [
             """
             | others | start, ms | loop | port |
             | --- | --- | --- | --- |
             | 0 | 2.00 | 1.00 | 1.00 |
             | 1000 | 30.0 | 1.00 |  |\
             """
           ]

    assert Report.sizes([]) == []
  end

  test "facts and rows can be read by programs" do
    row = row(name: "start", unit: "ms", rounds: [{1.0, 2.0}])

    assert %{"machine" => %{"cores" => 2}, "rows" => [read]} =
             JSON.decode!(Report.json([cores: 2], [row]))

    assert %{"name" => "start", "value" => 1.0, "ratio" => 0.5, "ratios" => [0.5]} = read
    assert %{"better" => "lower", "interval" => [0.5, 0.5], "verdict" => nil} = read
  end

  defp scale(size, beside), do: %{figure: "start", of: "others", size: size, beside: beside}
end
