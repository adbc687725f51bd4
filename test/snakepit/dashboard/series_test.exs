defmodule Snakepit.Dashboard.SeriesTest do
  use ExUnit.Case, async: true

  alias Snakepit.Dashboard.{Detail, Series}

  doctest Series
  doctest Detail, only: [nest: 2]

  test "it keeps so many points, the newest" do
    series = Enum.reduce(1..1_000, %Series{}, &Series.add(&2, &1 * 1_000, &1 * 10_000, &1))
    points = Series.points(series)
    assert length(points) == 120
    assert List.last(points) == [1_000_000, 1.0, 1_000]
    assert Series.cpu(series) == 1.0
    assert [[_, _, 999], [_, _, 1_000]] = Series.points(series, 2)
  end

  test "processor time that goes back, and a clock that does, are no negative use" do
    series = %Series{} |> Series.add(1_000, 500_000, 1) |> Series.add(2_000, 100_000, 1)
    assert Series.cpu(series) == 0.0
    assert series |> Series.add(1_500, 900_000, 1) |> Series.cpu() == nil
  end
end
