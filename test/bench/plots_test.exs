defmodule Snakepit.Bench.PlotsTest do
  use ExUnit.Case, async: true

  import Snakepit.Bench, only: [row: 1]

  alias Snakepit.Bench.Plots

  test "figures over size have a line for Snakepit and one for each that it is beside" do
    rows =
      for {size, value} <- [{10, 1.0}, {100, 5.0}],
          {other, factor} <- [{"loop", 2}, {"port", 3}] do
        scale = %{figure: "start", of: "processes", size: size, beside: other}
        row(name: "#{size}", unit: "ms", value: value, baseline: value * factor, scale: scale)
      end

    assert [panel] = Plots.scale([row(name: "none", unit: "ms", value: 1) | rows])
    assert panel[:title] == "start" and panel[:x][:log] and panel[:y][:log]

    assert Enum.map(panel[:series], &{&1[:label], &1[:points]}) == [
             {"Snakepit", [[10, 1.0], [100, 5.0]]},
             {"loop", [[10, 2.0], [100, 10.0]]},
             {"port", [[10, 3.0], [100, 15.0]]}
           ]
  end

  test "figures with a target are drawn round by round, and another colour if they miss it" do
    rounds = [{1.0, 2.0}, {2.0, 2.0}, {4.0, 2.0}]
    met = row(name: "a", unit: "ms", rounds: rounds, target: {:ratio, 2})
    missed = row(name: "b", unit: "MB", value: 4, target: {:value, 3})

    assert [first, second] = Plots.targets([met, missed])
    assert [[_, _, points: points], target] = first[:series]
    assert points == [[1, 0.5], [2, 1.0], [3, 2.0]]
    assert target[:points] == [[0.5, 2], [3.5, 2]]
    assert [measured, [label: "value <= 3", style: "dashed", points: line]] = second[:series]
    assert line == [[0.5, 3], [1.5, 3]]
    assert measured[:points] == [[1, 4]] and measured[:color]
  end

  test "a long title is broken between words, and none is lost" do
    name = Enum.map_join(1..40, " ", &"word#{&1}")
    [panel] = Plots.targets([row(name: name, unit: "ms", value: 1, target: {:value, 3})])
    lines = String.split(panel[:title], "\n")
    assert length(lines) > 2 and Enum.all?(lines, &(String.length(&1) <= 52))
    assert Enum.join(lines, " ") == name
  end
end
