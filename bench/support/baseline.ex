defmodule Snakepit.Bench.Baseline do
  @moduledoc """
  Whether figures got worse than those that were saved.

  Compared are ratios, which were measured beside each other and say the same on a faster machine, and
  whether targets are met. Other values are not: they are the machine's as much as Snakepit's.

  A ratio has got worse if two things are true:

    * Its rounds are worse than those that were saved. If nothing has changed, all orders of the rounds
      of both runs are equally likely, and that every one of five is worse than every one of another
      five comes about once in 252 times (once in 20 with three). Of more than five, so many have to be
      worse that it is as rare (Mann and Whitney's test). Rounds that vary much hide small changes, as
      they should.
    * It is worse by more than a tenth. What is different from run to run and the same in all rounds of
      one (where the linker put things, what else is in the caches) makes a difference of that order.

  Of a figure that has no rounds nothing is known about its noise: it has to be worse by more than a
  third.

  A target that was met and is missed counts too. One that cannot be decided any more does not.
  """

  alias Snakepit.Bench.JSON

  @least 0.10
  @least_without_rounds 0.33
  # Standard deviations: what five rounds have that are all worse than five others.
  @rare 2.6

  @typedoc "What became of one row, and a sentence about it."
  @type finding :: {:worse | :gone | :new | :better, String.t()}

  @type saved :: %{machine: map(), rows: [Snakepit.Bench.row() | map()]}

  @doc "What was saved, or nothing."
  @spec read(Path.t()) :: saved()
  def read(path) do
    case File.read(path) do
      {:ok, text} ->
        %{"machine" => machine, "rows" => rows} = JSON.decode!(text)
        %{machine: machine, rows: Enum.map(rows, &row/1)}

      {:error, :enoent} ->
        %{machine: %{}, rows: []}
    end
  end

  defp row(saved) do
    for key <- [:name, :value, :unit, :better, :baseline, :ratio, :ratios, :target, :verdict],
        into: %{},
        do: {key, read(key, Map.fetch!(saved, Atom.to_string(key)))}
  end

  defp read(key, text) when key in [:better, :verdict] and is_binary(text),
    do: String.to_existing_atom(text)

  defp read(_key, value), do: value

  @doc "The findings, those that matter most first. `then` and `now` are of the same benchmarks."
  @spec compare([map()], [map()]) :: [finding()]
  def compare(then, now) do
    saved = Map.new(then, &{&1.name, &1})
    measured = MapSet.new(now, & &1.name)
    gone = for row <- then, row.name not in measured, do: {:gone, row.name}

    found =
      Enum.flat_map(now, fn row ->
        case Map.fetch(saved, row.name) do
          {:ok, before} -> changes(before, row)
          :error -> [{:new, row.name}]
        end
      end)

    Enum.sort_by(gone ++ found, fn {kind, _} -> rank(kind) end)
  end

  defp rank(kind), do: Enum.find_index([:worse, :gone, :better, :new], &(&1 == kind))

  @doc "Whether one of them should stop a change."
  @spec bad?([finding()]) :: boolean()
  def bad?(findings), do: Enum.any?(findings, fn {kind, _} -> kind in [:worse, :gone] end)

  defp changes(then, now), do: ratio(then, now) ++ target(then, now)

  defp ratio(%{ratio: then_ratio} = then, %{ratio: now_ratio} = now)
       when is_number(then_ratio) and is_number(now_ratio) do
    cond do
      below?(now, then) -> [{:worse, told(then, now)}]
      below?(then, now) -> [{:better, told(then, now)}]
      true -> []
    end
  end

  defp ratio(%{ratio: nil}, %{ratio: nil}), do: []
  # It has a baseline now, or none any more: then it is another figure.
  defp ratio(%{ratio: nil}, now), do: [{:new, now.name}]
  defp ratio(then, _now), do: [{:gone, "#{then.name}: its ratio"}]

  # Of two figures the one that is worse, by how many times better they are than their baselines.
  defp below?(low, high) do
    score(low, low.ratio) < score(high, high.ratio) * (1 - least(low, high)) and
      lower?(rounds(low), rounds(high))
  end

  defp score(%{better: :lower}, ratio), do: 1 / ratio
  defp score(%{better: :higher}, ratio), do: ratio

  defp lower?(low, high) do
    {few, many} = {length(low), length(high)}
    below = Enum.count(for(one <- low, other <- high, one < other, do: one))
    pairs = few * many
    deviation = :math.sqrt(pairs * (few + many + 1) / 12)
    below == pairs or (below - pairs / 2) / deviation >= @rare
  end

  defp least(%{ratios: []}, _other), do: @least_without_rounds
  defp least(_one, %{ratios: []}), do: @least_without_rounds
  defp least(_one, _other), do: @least

  defp rounds(%{ratios: [], ratio: ratio} = row), do: [score(row, ratio)]
  defp rounds(%{ratios: ratios} = row), do: Enum.map(ratios, &score(row, &1))

  defp target(%{verdict: :met}, %{verdict: :missed} = now),
    do: [{:worse, "#{now.name}: met #{now.target} before"}]

  defp target(_then, _now), do: []

  defp told(then, now) do
    "#{now.name}: ratio #{spread(now)}, was #{spread(then)}"
  end

  defp spread(%{ratios: [], ratio: ratio}), do: short(ratio)

  defp spread(%{ratios: ratios, ratio: ratio}) do
    {least, most} = Enum.min_max(ratios)
    "#{short(ratio)} (#{short(least)} to #{short(most)})"
  end

  defp short(number), do: :erlang.float_to_binary(number / 1, [:compact, decimals: 3])
end
