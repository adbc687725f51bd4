defmodule Snakepit.Bench.VerdictTest do
  use ExUnit.Case, async: true

  import Snakepit.Bench, only: [row: 1]

  alias Snakepit.Bench.Verdict

  doctest Verdict

  test "the interval leaves out what chance alone would put outside one time in twenty" do
    # Order statistics of the binomial distribution, as in any table for the sign test.
    for {count, rank} <- [{1, 1}, {5, 1}, {6, 1}, {8, 1}, {9, 2}, {12, 3}, {20, 6}, {40, 14}] do
      assert Verdict.interval(Enum.shuffle(1..count)) == {rank, count + 1 - rank}
    end
  end

  test "the interval holds the median of what is drawn nineteen times in twenty" do
    :rand.seed(:exsss, {1, 2, 3})

    held =
      Enum.count(1..2_000, fn _ ->
        {low, high} = Verdict.interval(for _ <- 1..12, do: :math.exp(:rand.normal()))
        low <= 1 and 1 <= high
      end)

    assert held / 2_000 > 0.94
  end

  test "a bound within the interval decides nothing" do
    assert Verdict.judge({0.8, 1.0}, 1.0, :lower) == :met
    assert Verdict.judge({0.8, 1.01}, 1.0, :lower) == :undecided
    assert Verdict.judge({1.01, 1.2}, 1.0, :lower) == :missed
    assert Verdict.judge({1.0, 1.2}, 1.0, :higher) == :met
    assert Verdict.judge({0.99, 1.2}, 1.0, :higher) == :undecided
    assert Verdict.judge({0.8, 0.99}, 1.0, :higher) == :missed
  end

  test "the spread is that of the middle half" do
    assert Verdict.spread([100, 1, 10, 11, 9, 10, 10, 12]) == 0.2
    assert Verdict.spread([5]) == 0.0
    assert Verdict.spread([0, 0]) == 0.0
  end

  test "a row is judged by its rounds, each beside its own baseline" do
    # The machine became twice as slow: the ratio stays what it is.
    drift = for speed <- [1, 1, 1, 2, 2, 2], do: {0.9 * speed, 1.0 * speed}
    row = row(name: "drift", unit: "ms", rounds: drift, target: {:ratio, 1.0})
    assert row.verdict == :met and row.interval == {0.9, 0.9} and row.spread == 1.0

    noisy = for ratio <- [0.8, 0.9, 0.95, 1.05, 1.1, 1.3], do: {ratio, 1.0}
    assert row(name: "n", unit: "ms", rounds: noisy, target: {:ratio, 1.0}).verdict == :undecided
    assert row(name: "n", unit: "ms", rounds: noisy, target: {:ratio, 1.4}).verdict == :met
    assert row(name: "n", unit: "ms", rounds: noisy, target: {:value, 0.7}).verdict == :missed
    assert row(name: "n", unit: "ms", rounds: noisy).verdict == nil
  end

  test "what was measured beside others decides only what is far away" do
    verdict = fn value, target ->
      fields = [name: "r", unit: "ms", value: value, baseline: 1.0, target: {:ratio, target}]
      Snakepit.Bench.disturbed(row(fields)).verdict
    end

    assert verdict.(1.0, 3.9) == :undecided
    assert verdict.(1.0, 4) == :met
    assert verdict.(1.0, 0.25) == :undecided
    assert verdict.(1.0, 0.24) == :missed
    none = row(name: "lost", unit: "", value: 0, target: {:value, 0})
    assert Snakepit.Bench.disturbed(none).verdict == :met
    refute Snakepit.Bench.disturbed(row(name: "free", unit: "ms", value: 1)).quiet
  end

  test "rounds may have no baseline, and a figure no rounds" do
    row = row(name: "cpu", unit: "%", rounds: [0.1, 0.3, 0.2], target: {:value, 0.2})
    assert %{value: 0.2, interval: {0.1, 0.3}, verdict: :undecided, ratio: nil} = row
    assert row(name: "once", unit: "MB", value: 2, target: {:value, 2.5}).verdict == :met

    rate =
      row(name: "r", unit: "1/s", value: 9, baseline: 10, better: :higher, target: {:ratio, 1})

    assert rate.verdict == :missed and rate.target == "ratio >= 1"
  end
end
