defmodule Snakepit.Bench.Turns do
  @moduledoc """
  Measures several ways of doing something by turns, so that what else the machine does bears on all
  alike.

  A way is a function that does it once and returns what that took, or how much it was. It has its turn
  for some milliseconds and for some calls at least: what is slow gets few samples, and what is quick
  many, in about the same time. The first call of a turn is not counted, because it finds the caches as
  another way has left them.
  """

  import Snakepit.Bench, only: [percentile: 2, progress: 1]

  @least_rounds 3

  @type way :: {atom(), (() -> number())}

  @typedoc "The samples of each way in one round."
  @type round :: %{atom() => [number(), ...]}

  @doc """
  Rounds in which each way has its turn, in an order that changes with each round.

    * `:label` - said from time to time; nothing without
    * `:rounds` - how many (12)
    * `:within_ms` - how long all rounds may take; after three of them no further one begins then (20000)
    * `:turn_ms` - how long a turn lasts (200)
    * `:calls` - the least and the most calls that are counted in a turn (`5..5000`)
    * `:warm_up` - whether the first call is left out (`true`)

  """
  @spec run([way(), ...], keyword()) :: [round(), ...]
  def run(ways, opts \\ []) do
    opts =
      Keyword.validate!(opts, [
        :label,
        rounds: 12,
        within_ms: 20_000,
        turn_ms: 200,
        calls: 5..5_000,
        warm_up: true
      ])

    repeat(opts, fn number ->
      order = if rem(number, 2) == 1, do: ways, else: Enum.reverse(ways)
      Map.new(order, fn {way, fun} -> {way, turn(fun, opts)} end)
    end)
  end

  @doc """
  Calls `fun` with 1, 2, 3 and so on. Takes `:label`, `:rounds` and `:within_ms` as `run/2` does. Gives
  a list of what it returned.
  """
  @spec repeat(keyword(), (pos_integer() -> value)) :: [value, ...] when value: term()
  def repeat(opts, fun) do
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

  # In a process of its own, with an empty mailbox: whoever waits for a message in one that has those of
  # thousands of processes searches them all.
  defp turn(fun, opts) do
    Task.await(Task.async(fn -> samples(fun, opts) end), :infinity)
  end

  defp samples(fun, opts) do
    least..most = opts[:calls]
    if opts[:warm_up], do: fun.()
    samples([], 0, now() + opts[:turn_ms], {least, most}, fun)
  end

  defp samples(done, count, deadline, {least, most} = limits, fun) do
    if count == most or (count >= least and now() >= deadline),
      do: done,
      else: samples([fun.() | done], count + 1, deadline, limits, fun)
  end

  @doc "Round by round, what `fun` makes of the samples of one way and of another."
  @spec beside([round()], atom(), atom(), ([number()] -> number())) :: [{number(), number()}]
  def beside(rounds, ours, theirs, fun \\ &percentile(&1, 50)) do
    for round <- rounds, do: {fun.(round[ours]), fun.(round[theirs])}
  end

  defp now, do: System.monotonic_time(:millisecond)
end
