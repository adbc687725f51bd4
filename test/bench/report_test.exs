defmodule Snakepit.Bench.ReportTest do
  use ExUnit.Case, async: true

  import Snakepit.Bench, only: [row: 1]

  alias Snakepit.Bench.{JSON, Report}

  test "a table has a line per row, whatever the rows hold besides" do
    rows = [
      row(
        name: "start",
        unit: "ms",
        rounds: [{1.0, 2.0}, {2.0, 2.0}, {4.0, 2.0}],
        target: {:ratio, 2}
      ),
      row(name: "rate", unit: "1/s", value: 250, better: :higher, scale: {"rate", 10, "loop"})
    ]

    assert Report.table(rows) == """
           name   value  unit  baseline  ratio  target      met
           start   2.00  ms        2.00   1.00  ratio >= 2   NO
           rate     250  1/s\
           """
  end

  test "facts and rows can be read by programs" do
    row = row(name: "start", unit: "ms", rounds: [{1.0, 2.0}])

    assert %{"machine" => %{"cores" => 2}, "rows" => [read]} =
             JSON.decode!(Report.json([cores: 2], [row]))

    assert %{"name" => "start", "value" => 1.0, "ratio" => 2.0, "ratios" => [2.0]} = read
  end
end
