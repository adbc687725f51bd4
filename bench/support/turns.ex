defmodule Snakepit.Bench.Turns do
  @moduledoc """
  Measures several ways of doing something by turns, so that what else the machine does bears on all
  alike.

  Ways are functions. In a round each has its turn, in a process of its own, with an empty mailbox:
  whoever waits for a message in one that has those of thousands of processes searches them all.
  """

  import Snakepit.Bench, only: [percentile: 2, progress: 1]

  @least_rounds 3

  @typedoc "What each way returned in a round."
  @type round(value) :: %{atom() => value}

  @doc """
  Rounds in which each way is called once, in an order that changes with each round.

    * `:label` - said from time to time; nothing without
    * `:rounds` - how many (12)
    * `:within_ms` - how long all rounds may take; after three of them no further one begins then (20000)

  """
  @spec each([{atom(), (() -> value)}, ...], keyword()) :: [round(value), ...] when value: term()
  def each(ways, opts \\ []) do
    repeat(opts, fn number ->
      order = if rem(number, 2) == 1, do: ways, else: Enum.reverse(ways)
      Map.new(order, fn {way, fun} -> {way, Task.await(Task.async(fun), :infinity)} end)
    end)
  end

  @doc """
  Rounds in which each way is called again and again, and returns a number each time: what is slow gets
  few samples and what is quick gets many, in about the same time. The first call of a turn is not
  counted, because it finds the caches as another way has left them.

  Takes the options of `each/2`, and

    * `:turn_ms` - how long a turn lasts (200)
    * `:calls` - the least and the most calls that are counted in a turn (`5..5000`)

  """
  @spec run([{atom(), (() -> number())}, ...], keyword()) :: [round([number(), ...]), ...]
  def run(ways, opts \\ []) do
    {own, opts} = Keyword.split(opts, [:turn_ms, :calls])
    own = Keyword.merge([turn_ms: 200, calls: 5..5_000], own)
    each(for({way, fun} <- ways, do: {way, fn -> turn(fun, own) end}), opts)
  end

  @doc """
  Calls `fun` with 1, 2, 3 and so on, and gives a list of what it returned. Takes the options of
  `each/2`.
  """
  @spec repeat(keyword(), (pos_integer() -> value)) :: [value, ...] when value: term()
  def repeat(opts, fun) do
    opts = Keyword.validate!(opts, [:label, rounds: 12, within_ms: 20_000])
    deadline = now() + opts[:within_ms]
    every = max(1, div(opts[:rounds], 4))

    Enum.reduce_while(1..opts[:rounds], [], fn number, done ->
      if number > @least_rounds and now() > deadline do
        {:halt, done}
      else
        if opts[:label] && rem(number - 1, every) == 0,
          do: progress("#{opts[:label]}, round #{number} of #{opts[:rounds]}")

        {:cont, [fun.(number) | done]}
      end
    end)
    |> Enum.reverse()
  end

  defp turn(fun, opts) do
    least..most//1 = opts[:calls]
    fun.()
    samples([], 0, now() + opts[:turn_ms], {least, most}, fun)
  end

  defp samples(done, count, deadline, {least, most} = limits, fun) do
    if count == most or (count >= least and now() >= deadline),
      do: done,
      else: samples([fun.() | done], count + 1, deadline, limits, fun)
  end

  @doc "Round by round, what `fun` makes of what one way has returned, and of what another has."
  @spec beside([round(value)], atom(), atom(), (value -> number())) :: [{number(), number()}]
        when value: term()
  def beside(rounds, ours, theirs, fun \\ &percentile(&1, 50)) do
    for round <- rounds, do: {fun.(round[ours]), fun.(round[theirs])}
  end

  defp now, do: System.monotonic_time(:millisecond)
end
