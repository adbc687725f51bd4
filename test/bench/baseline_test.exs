defmodule Snakepit.Bench.BaselineTest do
  use ExUnit.Case, async: true

  import Snakepit.Bench, only: [row: 1]

  alias Snakepit.Bench.{Baseline, Report}

  @rounds [10.0, 10.4, 9.6, 10.2, 9.8]

  # Snakepit's times in rounds in which the other way took 10.
  defp figure(times, more \\ []) do
    row([name: "start", unit: "ms", rounds: Enum.map(times, &{&1, 10.0})] ++ more)
  end

  defp slower(factor), do: Enum.map(@rounds, &(&1 * factor))

  defp kinds(findings), do: for({kind, _text} <- findings, do: kind)

  test "a ratio that is worse in every round, and by more than a tenth, is worse" do
    assert [{:worse, text}] = Baseline.compare([figure(@rounds)], [figure(slower(1.25))])
    assert text == "start: ratio 1.25 (1.2 to 1.3), was 1.0 (0.96 to 1.04)"
    assert [{:better, _}] = Baseline.compare([figure(slower(1.25))], [figure(@rounds)])
  end

  test "one that is worse in every round by less than a tenth is not" do
    steady = [10.0, 10.0, 10.0]
    assert Baseline.compare([figure(steady)], [figure([10.9, 11.0, 11.0])]) == []
    assert [{:worse, _}] = Baseline.compare([figure(steady)], [figure([11.2, 11.2, 11.2])])
  end

  test "one whose rounds overlap with those of before is not, however much worse its median is" do
    noisy = [10.0, 10.0, 10.0, 10.0, 14.0]
    assert Baseline.compare([figure(noisy)], [figure(slower(1.4))]) == []
    assert [{:worse, _}] = Baseline.compare([figure(noisy)], [figure(slower(1.5))])
  end

  test "of many rounds a few may overlap" do
    many = for _ <- 1..3, time <- @rounds, do: time
    outlier = [20.0 | tl(many)]
    worse = Enum.map(many, &(&1 * 1.25))
    assert [{:worse, _}] = Baseline.compare([figure(outlier)], [figure(worse)])
    # Not half of them.
    half =
      for {time, number} <- Enum.with_index(many),
          do: if(rem(number, 2) == 0, do: time, else: 20.0)

    assert Baseline.compare([figure(half)], [figure(worse)]) == []
  end

  test "a figure without rounds has to be worse by more than a third" do
    single = fn value -> row(name: "start", unit: "ms", value: value, baseline: 10.0) end
    assert Baseline.compare([single.(10.0)], [single.(14.0)]) == []
    assert [{:worse, _}] = Baseline.compare([single.(10.0)], [single.(16.0)])
    # Nor do the rounds of one of them tell how the other varied.
    assert Baseline.compare([single.(10.0)], [figure(slower(1.25))]) == []
    assert [{:worse, _}] = Baseline.compare([single.(10.0)], [figure(slower(1.7))])
  end

  test "rates are better when they are higher" do
    rate = fn values -> figure(values, better: :higher) end
    assert [{:better, _}] = Baseline.compare([rate.(@rounds)], [rate.(slower(1.25))])
    assert [{:worse, _}] = Baseline.compare([rate.(slower(1.25))], [rate.(@rounds)])
  end

  test "a target that was met and is missed is worse, unless that is undecided" do
    target = [target: {:ratio, 1.02}]
    before = figure([10.0, 10.1, 10.0], target)
    missed = figure([10.3, 10.4, 10.3], target)
    assert [before.verdict, missed.verdict] == [:met, :missed]
    assert Baseline.compare([before], [missed]) == [{:worse, "start: met ratio <= 1.02 before"}]
    nearly = figure([10.3, 10.1, 10.3], target)
    assert nearly.verdict == :undecided
    assert Baseline.compare([before], [nearly]) == []
    # Nothing is lost that was not there.
    assert Baseline.compare([missed], [missed]) == []
  end

  test "a target for a value counts, though values are not compared" do
    memory = fn mb -> row(name: "memory", unit: "MB", value: mb, target: {:value, 3.0}) end
    assert Baseline.compare([memory.(1.0)], [memory.(2.9)]) == []
    assert [{:worse, _}] = Baseline.compare([memory.(2.9)], [memory.(3.1)])
  end

  test "a row that is no longer measured is as bad as one that got worse; a new one is not" do
    other = row(name: "other", unit: "ms", value: 1)
    assert Baseline.compare([figure(@rounds)], [other]) == [gone: "start", new: "other"]
    assert Baseline.bad?(gone: "start")
    assert Baseline.bad?(worse: "start")
    refute Baseline.bad?(new: "other", better: "start")

    alone = row(name: "start", unit: "ms", value: 10.0)
    assert [{:gone, _}] = Baseline.compare([figure(@rounds)], [alone])
    assert [{:new, _}] = Baseline.compare([alone], [figure(@rounds)])
  end

  test "what is worse comes first" do
    rows = fn times -> [row(name: "new", unit: "ms", value: 1), figure(times)] end
    assert [:worse, :new] = kinds(Baseline.compare([figure(@rounds)], rows.(slower(2))))
  end

  @tag :tmp_dir
  test "what was saved is read as it was", %{tmp_dir: directory} do
    path = Path.join(directory, "baseline.json")
    rows = [figure(@rounds, target: {:ratio, 0.5}), row(name: "µ", unit: "%", value: 2)]
    File.write!(path, Report.json([cpu: "one \"with\" quotes", load_average: [0.5, 1.0]], rows))

    saved = Baseline.read(path)
    assert saved.machine == %{"cpu" => "one \"with\" quotes", "load_average" => [0.5, 1.0]}

    assert saved.rows ==
             Enum.map(rows, &Map.drop(&1, [:bound, :scale, :interval, :spread, :quiet]))

    assert Baseline.compare(saved.rows, rows) == []
    assert Baseline.read(Path.join(directory, "none")) == %{machine: %{}, rows: []}
  end
end
