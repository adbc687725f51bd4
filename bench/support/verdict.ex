defmodule Snakepit.Bench.Verdict do
  @moduledoc """
  Whether a target is met, is missed, or cannot be decided by what was measured.

  A figure that was measured in rounds is known up to an interval. The order statistics of the rounds
  bound it without any assumption about how they are distributed: the median lies between the k-th
  smallest and the k-th largest of them with a probability that the binomial distribution tells. `k` is
  the largest for which that is 95 %. Of fewer than six rounds, where even the extremes promise less, the
  interval is all of them.

  A target is met if the whole interval meets it, and missed if none of it does. Otherwise another run
  could decide the other way, and the verdict is that this one decides nothing.

  Rounds tell how much a figure varies, and not what shifts all of them alike. Whoever works beside a
  benchmark does: with both cores of a machine busy, a start took 1.6 times as long as in a bare loop
  instead of 0.95, and workers started at 0.2 of the rate of ports instead of 0.8, because what takes
  several processes waits for a core several times. So an interval that was measured beside others is
  widened by that, and decides only what is beyond it.
  """

  @doubt 0.05
  @shift 4

  @type t :: :met | :missed | :undecided
  @type interval :: {low :: number(), high :: number()}
  @type better :: :lower | :higher

  @doc """
  The interval of the median.

      iex> Snakepit.Bench.Verdict.interval([1, 2, 3])
      {1, 3}
      iex> Snakepit.Bench.Verdict.interval(Enum.to_list(1..12))
      {3, 10}

  """
  @spec interval([number(), ...]) :: interval()
  def interval(rounds) do
    sorted = Enum.sort(rounds)
    rank = rank(length(sorted))
    {Enum.at(sorted, rank - 1), Enum.at(sorted, -rank)}
  end

  # Of all ways in which the rounds may lie below and above the median, those with fewer than `rank` of
  # them below, and as many with fewer above.
  defp rank(count) do
    1..count
    |> Enum.map(&binomial(count, &1 - 1))
    |> Enum.scan(&+/2)
    |> Enum.count(&(2 * &1 <= @doubt * Integer.pow(2, count)))
    |> max(1)
  end

  defp binomial(count, taken) do
    Enum.reduce(1..taken//1, 1, fn one, ways -> div(ways * (count - one + 1), one) end)
  end

  @doc "The interval, widened by what others who work on the machine may have done to it."
  @spec widen(interval()) :: interval()
  def widen({low, high}), do: {low / @shift, high * @shift}

  @doc "What an interval says about a bound, which is to be met from below or from above."
  @spec judge(interval(), number(), better()) :: t()
  def judge({_low, high}, bound, :lower) when high <= bound, do: :met
  def judge({low, _high}, bound, :lower) when low > bound, do: :missed
  def judge({low, _high}, bound, :higher) when low >= bound, do: :met
  def judge({_low, high}, bound, :higher) when high < bound, do: :missed
  def judge(_interval, _bound, _better), do: :undecided

  @doc """
  How far the middle half of the rounds is apart, as a part of their median. Of a baseline, which does
  the same thing each time, it is the noise of the machine.
  """
  @spec spread([number(), ...]) :: float()
  def spread(rounds) do
    [low, middle, high] = for percent <- [25, 50, 75], do: percentile(rounds, percent)
    if middle == 0, do: 0.0, else: (high - low) / middle
  end

  @doc "The value below or at which `percent` of them lie."
  @spec percentile([number(), ...], 1..100) :: number()
  def percentile(values, percent) do
    values |> Enum.sort() |> Enum.at(ceil(length(values) * percent / 100) - 1)
  end
end
