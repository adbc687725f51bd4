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
          [row(name: "nap", value: nap.p50, unit: "µs", baseline: shell.p50, target: {:ratio, 2})]
        end
      end

  Whatever it starts it ends itself, also when it fails.
  """

  @typedoc """
  One figure. `baseline` was measured beside it in the same run, in the same unit. `ratio` says how
  many times better the value is than the baseline: above 1 it is faster, smaller, or more per second.
  `ratios` are those of the single rounds, if there were any. `scale` says what it is a point of.
  """
  @type row :: %{
          name: String.t(),
          value: number(),
          unit: String.t(),
          baseline: number() | nil,
          ratio: float() | nil,
          ratios: [float()],
          target: String.t() | nil,
          bound: bound() | nil,
          met: boolean() | nil,
          scale: scale() | nil
        }

  @type bound :: {:ratio | :value, number()}

  @typedoc "What was measured, at which size, beside what."
  @type scale :: {figure :: String.t(), size :: pos_integer(), beside :: String.t()}

  @callback run() :: [row()]

  @doc """
  A row.

    * `:name`, `:unit` - required
    * `:value` - required, unless there are `:rounds`
    * `:better` - `:lower`, the default, as for times and memory, or `:higher`, as for rates
    * `:baseline` - the same thing done the other way
    * `:rounds` - a list of `{value, baseline}`, instead of those: their medians are taken. Whoever
      compares runs learns from them how much the figure varies by itself.
    * `:target` - `{:ratio, r}`: at least `r` times as good as the baseline; or `{:value, v}`: `v`
      or better
    * `:scale` - for figures that are measured at several sizes: what they are drawn as

  """
  @spec row(keyword()) :: row()
  def row(fields) do
    fields =
      Keyword.validate!(
        fields,
        [:name, :unit, :value, :baseline, :rounds, :target, :scale, better: :lower]
      )

    [name, unit] = Enum.map([:name, :unit], &Keyword.fetch!(fields, &1))
    {rounds, better} = {fields[:rounds] || [], fields[:better]}
    {value, baseline} = figures(fields, rounds)
    ratio = baseline && ratio(better, value, baseline)
    {target, met} = judge(fields[:target], better, value, ratio)

    %{
      name: name,
      value: value,
      unit: unit,
      baseline: baseline,
      ratio: ratio,
      ratios: for({value, baseline} <- rounds, do: ratio(better, value, baseline)),
      target: target,
      bound: fields[:target],
      met: met,
      scale: fields[:scale]
    }
  end

  defp figures(fields, []), do: {Keyword.fetch!(fields, :value), fields[:baseline]}

  defp figures(_fields, rounds) do
    {values, baselines} = Enum.unzip(rounds)
    {percentile(values, 50), percentile(baselines, 50)}
  end

  defp ratio(:lower, value, baseline), do: baseline / value
  defp ratio(:higher, value, baseline), do: value / baseline

  defp judge(nil, _better, _value, _ratio), do: {nil, nil}

  defp judge({:ratio, least}, _better, _value, ratio) when is_number(ratio),
    do: {"ratio >= #{least}", ratio >= least}

  defp judge({:value, most}, :lower, value, _ratio), do: {"value <= #{most}", value <= most}
  defp judge({:value, least}, :higher, value, _ratio), do: {"value >= #{least}", value >= least}

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
  def percentile(values, percent) do
    values |> Enum.sort() |> Enum.at(ceil(length(values) * percent / 100) - 1)
  end

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
