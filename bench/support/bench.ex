defmodule Snakepit.Bench do
  @moduledoc """
  What a benchmark is made of.

  A benchmark is a file `bench/NAME.exs` with a module of this behaviour. (A module, because a
  function of a bare script is interpreted, which takes longer than what some of them measure.) Its
  `run/0` measures and gives rows:

      defmodule Snakepit.Bench.Naps do
        @behaviour Snakepit.Bench
        import Snakepit.Bench

        @impl true
        def run do
          nap = time(100, fn -> Process.sleep(1) end)
          shell = time(100, fn -> System.cmd("sleep", ["0.001"]) end)
          [row(name: "nap", value: nap.p50, unit: "µs", baseline: shell.p50, target: {:ratio, 0.5})]
        end
      end

  Whatever it starts it ends itself, also when it fails.
  """

  alias Snakepit.Bench.Verdict

  @typedoc """
  One figure. `baseline` was measured beside it in the same run, in the same unit, and `ratio` is the
  value as a part of it. `ratios` are those of the single rounds, if there were any; `interval` is what
  they say about the ratio, or about the value if that has the target; `spread` is how much the baseline
  varied between rounds; `quiet` is whether the machine did nothing else. `scale` says what it is a point
  of.
  """
  @type row :: %{
          name: String.t(),
          value: number(),
          unit: String.t(),
          better: Verdict.better(),
          baseline: number() | nil,
          ratio: float() | nil,
          ratios: [float()],
          interval: Verdict.interval() | nil,
          spread: float() | nil,
          target: String.t() | nil,
          bound: bound() | nil,
          verdict: Verdict.t() | nil,
          quiet: boolean(),
          scale: scale() | nil
        }

  @type bound :: {:ratio | :value, number()}

  @typedoc "What was measured, at which size of what, beside what."
  @type scale :: %{
          figure: String.t(),
          of: String.t(),
          size: non_neg_integer(),
          beside: String.t()
        }

  @callback run() :: [row()]

  @doc """
  A row.

    * `:name`, `:unit` - required
    * `:value` - required, unless there are `:rounds`
    * `:better` - `:lower`, the default, as for times and memory, or `:higher`, as for rates
    * `:baseline` - the same thing done the other way
    * `:rounds` - a list of `{value, baseline}`, or of values, instead of those: their medians are
      taken, and the ratio is the median of the rounds' ratios, because a round's two figures were
      measured right after each other
    * `:target` - `{:ratio, r}`: the value is to be `r` times the baseline, or better; `{:value, v}`:
      it is to be `v`, or better
    * `:scale` - for figures that are measured at several sizes: what they are listed and drawn as

  """
  @spec row(keyword()) :: row()
  def row(fields) do
    fields =
      Keyword.validate!(
        fields,
        [:name, :unit, :value, :baseline, :rounds, :target, :scale, better: :lower]
      )

    [name, unit] = Enum.map([:name, :unit], &Keyword.fetch!(fields, &1))
    {better, bound} = {fields[:better], fields[:target]}
    figures = figures(fields, fields[:rounds] || [])
    interval = interval(figures, bound)

    %{
      name: name,
      value: figures.value,
      unit: unit,
      better: better,
      baseline: figures.baseline,
      ratio: figures.ratio,
      ratios: figures.ratios,
      interval: interval,
      spread: figures.spread,
      target: bound && target(bound, better),
      bound: bound,
      verdict: bound && judge(interval || certain(figures, bound), bound, better),
      quiet: true,
      scale: fields[:scale]
    }
  end

  @doc "The same row, judged as one that was measured while others worked on the machine."
  @spec disturbed(row()) :: row()
  def disturbed(%{bound: nil} = row), do: %{row | quiet: false}
  # Nobody else has a part in what memory a process has.
  def disturbed(%{unit: "MB"} = row), do: %{row | quiet: false}

  def disturbed(%{bound: bound} = row) do
    interval = Verdict.widen(row.interval || certain(row, bound))
    %{row | quiet: false, verdict: judge(interval, bound, row.better)}
  end

  defp judge(interval, {_kind, bound}, better), do: Verdict.judge(interval, bound, better)

  defp figures(fields, []) do
    {value, baseline} = {Keyword.fetch!(fields, :value), fields[:baseline]}
    ratio = baseline && value / baseline
    %{value: value, baseline: baseline, ratio: ratio, values: [], ratios: [], spread: nil}
  end

  defp figures(_fields, [{_value, _baseline} | _] = rounds) do
    {values, baselines} = Enum.unzip(rounds)
    ratios = for {value, baseline} <- rounds, do: value / baseline
    [value, baseline, ratio] = for list <- [values, baselines, ratios], do: percentile(list, 50)

    %{
      value: value,
      baseline: baseline,
      ratio: ratio,
      values: values,
      ratios: ratios,
      spread: Verdict.spread(baselines)
    }
  end

  defp figures(_fields, values) do
    value = percentile(values, 50)
    %{value: value, baseline: nil, ratio: nil, values: values, ratios: [], spread: nil}
  end

  defp interval(%{values: []}, _bound), do: nil
  defp interval(%{values: values}, {:value, _}), do: Verdict.interval(values)
  defp interval(%{ratios: [_ | _] = ratios}, _bound), do: Verdict.interval(ratios)
  defp interval(%{values: values}, _bound), do: Verdict.interval(values)

  # Of what was measured once nothing is known but the figure itself.
  defp certain(%{ratio: ratio}, {:ratio, _}) when is_number(ratio), do: {ratio, ratio}
  defp certain(%{value: value}, {:value, _}), do: {value, value}

  defp target({kind, bound}, :lower), do: "#{kind} <= #{bound}"
  defp target({kind, bound}, :higher), do: "#{kind} >= #{bound}"

  @doc """
  Calls `fun` again and again and gives the percentiles of the time that a call took, in µs.

  What is too quick for the clock is timed by the `:batch`: each of the samples is then the mean of
  that many calls.
  """
  @spec time(pos_integer(), keyword(), (() -> term())) :: %{p50: float(), p99: float()}
  def time(samples, opts \\ [], fun) do
    batch = Keyword.validate!(opts, batch: 1)[:batch]
    repeat(batch, fun)

    times =
      for _sample <- 1..samples do
        {us, :ok} = once(fn -> repeat(batch, fun) end)
        us / batch
      end

    %{p50: percentile(times, 50), p99: percentile(times, 99)}
  end

  @doc "Calls `fun` once. Gives the time in µs and what it returned."
  @spec once((() -> value)) :: {float(), value} when value: term()
  def once(fun) do
    started = System.monotonic_time(:nanosecond)
    value = fun.()
    {(System.monotonic_time(:nanosecond) - started) / 1000, value}
  end

  @doc "The value below or at which `percent` of them lie."
  @spec percentile([number(), ...], 1..100) :: number()
  defdelegate percentile(values, percent), to: Verdict

  @doc "Runs `fun` with a directory of its own, which is gone afterwards."
  @spec with_directory((Path.t() -> value)) :: value when value: term()
  def with_directory(fun) do
    unique = System.unique_integer([:positive])
    directory = Path.join(System.tmp_dir!(), "snakepit_bench_#{System.pid()}_#{unique}")
    File.mkdir_p!(directory)

    try do
      fun.(directory)
    after
      File.rm_rf!(directory)
    end
  end

  @doc "Tells whoever is waiting what goes on."
  @spec progress(String.t()) :: :ok
  def progress(text), do: IO.puts(:stderr, "  #{text}")

  defp repeat(0, _fun), do: :ok

  defp repeat(times, fun) do
    fun.()
    repeat(times - 1, fun)
  end
end
