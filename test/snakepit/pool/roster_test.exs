defmodule Snakepit.Pool.RosterTest do
  use ExUnit.Case, async: true

  alias Snakepit.Pool.Slot
  alias Snakepit.Test.PoolModel

  @walks 600
  @steps 150

  # With all its first workers ready.
  defp started(opts), do: opts |> PoolModel.new() |> PoolModel.settle()

  defp states(model),
    do: model.roster.slots |> Map.values() |> Enum.sort_by(& &1.number) |> Enum.map(& &1.state)

  defp pid(model, lease), do: Map.fetch!(model.lent, lease)

  defp worker(model, state),
    do: Enum.find_value(model.workers, fn {pid, w} -> if(w.state == state, do: pid) end)

  test "whatever happens in whatever order, no worker is lent twice and nobody is lost" do
    seed = :rand.uniform(1_000_000_000)

    seen =
      for walk <- 1..@walks, reduce: %{} do
        seen ->
          :rand.seed(:exsss, {seed, walk, 0})

          try do
            model = walk(PoolModel.new(random_options()), @steps) |> PoolModel.settle()
            Map.merge(seen, model.seen, fn _what, a, b -> a + b end)
          rescue
            error ->
              message = "walk #{walk} with the seed #{seed}: " <> Exception.message(error)
              reraise ExUnit.AssertionError, [message: message], __STACKTRACE__
          end
      end

    # What was never tried is not shown.
    all = [:lend, :wait, :refuse, :launch, :stop, :warm_up, :cancel_warm_up, :measure, :recycled]
    assert (all ++ [:max_requests, :max_age, :max_memory]) -- Map.keys(seen) == []
  end

  defp random_options do
    min = :rand.uniform(4) - 1
    max = max(min, 1) + :rand.uniform(3) - 1

    [
      min: min,
      max: max,
      max_queue: one_of([:infinity, 0, 3]),
      max_requests: one_of([:infinity, 1, 3]),
      max_age: one_of([:infinity, 500]),
      max_memory: one_of([:infinity, 100]),
      memory_interval: 50,
      idle_timeout: one_of([:infinity, 0, 200]),
      warm_up: one_of([nil, {:a, :function, []}]),
      warm_up_timeout: 400,
      launches: :rand.uniform(3),
      launch_timeout: 250,
      max_keys: one_of([2, 100])
    ]
  end

  defp walk(model, 0), do: model
  defp walk(model, steps), do: model |> step(:rand.uniform(100)) |> walk(steps - 1)

  defp step(model, die) do
    cond do
      die <= 22 ->
        elem(PoolModel.ask(model, random_caller()), 1)

      die <= 37 ->
        with_one(model, Map.keys(model.lent), &PoolModel.give_back/2)

      die <= 42 ->
        with_one(model, model.waiting, &PoolModel.give_up/2)

      die <= 50 ->
        with_one(model, workers(model, :launching), &PoolModel.launched/2)

      die <= 60 ->
        with_one(model, workers(model, :running), &PoolModel.ready/2)

      die <= 66 ->
        with_one(model, Map.keys(model.warm_ups), &PoolModel.warmed(&1, &2, random_result()))

      die <= 70 ->
        with_one(model, Enum.flat_map([:told, :gone], &workers(model, &1)), &PoolModel.down/2)

      die <= 74 ->
        with_one(model, workers(model, :running) ++ workers(model, :ready), &PoolModel.ended/2)

      die <= 76 ->
        with_one(model, Map.keys(model.workers), &PoolModel.down/2)

      die <= 78 ->
        with_one(model, workers(model, :ready), &PoolModel.lost/2)

      die <= 82 ->
        PoolModel.measure(model, fn _pid -> :rand.uniform(120) end)

      die <= 84 ->
        resize(model)

      die <= 87 ->
        with_one(
          model,
          Map.keys(model.roster.slots),
          &PoolModel.restart(&1, &2, :rand.uniform(2) == 1)
        )

      true ->
        PoolModel.pass(model, :rand.uniform(200))
    end
  end

  defp random_caller do
    case :rand.uniform(4) do
      1 -> []
      _with_key -> [key: :rand.uniform(5), affinity: one_of([:hint, :strict, :fail_fast])]
    end
  end

  defp random_result,
    do: one_of([:ok, :ok, {:error, %Snakepit.Error{operation: :warm_up, reason: :not_ready}}])

  defp resize(model) do
    min = :rand.uniform(4) - 1
    PoolModel.resize(model, min, max(min, 1) + :rand.uniform(3) - 1)
  end

  defp workers(model, state), do: for({pid, %{state: ^state}} <- model.workers, do: pid)
  defp with_one(model, [], _fun), do: model
  defp with_one(model, all, fun), do: fun.(model, one_of(all))
  defp one_of(all), do: Enum.random(all)

  test "a fixed pool lends by turns, one that changes its size the worker that was used last" do
    used = fn opts ->
      Enum.map_reduce(1..4, started(opts), fn _n, model ->
        {lease, model} = PoolModel.ask(model)
        {pid(model, lease), PoolModel.give_back(model, lease)}
      end)
      |> elem(0)
      |> Enum.uniq()
      |> length()
    end

    assert used.(size: 2) == 2
    assert used.(min: 2, max: 3) == 1
  end

  test "it grows as callers wait, and shrinks from the one that is idle for longest" do
    model = started(min: 0, max: 2, idle_timeout: 1_000)
    assert states(model) == []
    {a, model} = PoolModel.ask(model)
    assert states(model) == [:launching]
    {b, model} = PoolModel.ask(model)
    {c, model} = PoolModel.ask(model)
    # No more than it may.
    assert states(model) == [:launching, :launching]

    model =
      model
      |> PoolModel.launched(1)
      |> PoolModel.ready(1)
      |> PoolModel.launched(2)
      |> PoolModel.ready(2)

    assert {1, 2, [^c]} = {pid(model, a), pid(model, b), model.waiting}
    model = model |> PoolModel.give_back(a) |> PoolModel.give_back(c)
    model = model |> PoolModel.pass(600) |> PoolModel.give_back(b) |> PoolModel.pass(500)
    assert states(model) == [:stopping, :idle]
    assert states(PoolModel.pass(model, 500)) == [:stopping, :stopping]
  end

  test "who may wait is a matter of :max_queue, but nobody is refused for whom a worker is on its way" do
    model = PoolModel.new(min: 1, max: 2, max_queue: 1)
    {_a, model} = PoolModel.ask(model)
    {_b, model} = PoolModel.ask(model)
    {_c, model} = PoolModel.ask(model)
    assert length(model.waiting) == 3
    {d, model} = PoolModel.ask(model)
    assert {length(model.waiting), model.seen.refuse} == {3, 1}
    refute is_map_key(model.asked, d)
  end

  test "a worn worker is used until the next one is ready, and a tenth are exchanged at a time" do
    model = started(size: 1, max_requests: 2)

    model =
      for n <- 1..5, reduce: model do
        model ->
          {lease, model} = PoolModel.ask(model)
          # Lent although another one is on its way.
          assert pid(model, lease) == 1
          assert states(model) == if(n > 2, do: [:busy, :launching], else: [:busy])
          PoolModel.give_back(model, lease)
      end

    {held, model} = PoolModel.ask(model)
    model = model |> PoolModel.launched(2) |> PoolModel.ready(2)
    assert [:busy, :idle] = states(model)
    model = PoolModel.give_back(model, held)
    assert [:stopping, :idle] = states(model)

    assert [%Slot{number: 2, requests: 0, replaces: nil}] =
             PoolModel.down(model, 1).roster.slots |> Map.values()

    # All are of the same age.
    model = started(size: 20, max_age: 1_000) |> PoolModel.pass(1_000)
    assert Enum.frequencies(states(model)) == %{idle: 20, launching: 2}
    model = model |> PoolModel.launched(21) |> PoolModel.ready(21)
    assert Enum.frequencies(states(model)) == %{idle: 20, launching: 2, stopping: 1}
  end

  test "the replacement takes the place of one that ends before it is ready" do
    model = started(size: 1, max_requests: 1)
    {lease, model} = PoolModel.ask(model)
    model = model |> PoolModel.give_back(lease) |> PoolModel.down(1)
    assert [%Slot{number: 2, replaces: nil, state: :launching}] = Map.values(model.roster.slots)
    assert model.roster.members == 1
  end

  test "memory is measured at intervals, and too much of it wears a worker out" do
    model = started(size: 2, max_memory: 100, memory_interval: 1_000) |> PoolModel.pass(999)
    assert model.measured == nil
    model = PoolModel.pass(model, 1)
    assert [{_, _, _}, {_, _, _}] = model.measured
    model = PoolModel.measure(model, &if(&1 == 1, do: 101, else: 100))
    assert states(model) == [:idle, :idle, :launching]
    assert %{max_memory: 1} = PoolModel.settle(model) |> PoolModel.pass(1) |> Map.fetch!(:seen)
  end

  test "a key has its worker while it lives; the three ways when that is in use" do
    model = started(size: 2)
    {a, model} = PoolModel.ask(model, key: :k)
    mine = pid(model, a)
    {other, model} = PoolModel.ask(model, key: :k, affinity: :hint)
    refute pid(model, other) == mine
    model = PoolModel.give_back(model, other)
    {_fast, model} = PoolModel.ask(model, key: :k, affinity: :fail_fast)
    assert model.seen.refuse == 1
    {strict, model} = PoolModel.ask(model, key: :k, affinity: :strict)
    # Although the other one is idle.
    assert model.waiting == [strict]
    model = PoolModel.give_back(model, a)
    assert pid(model, strict) == mine

    # Another one may have it when it has ended; those who wait for it are not refused.
    {next, model} = PoolModel.ask(model, key: :k, affinity: :strict)
    model = model |> PoolModel.ended(mine)
    refute pid(model, next) == mine
  end

  test "strict callers with a key that no worker has yet wait for the one that the first of them gets" do
    model = started(size: 2)
    {a, model} = PoolModel.ask(model)
    {b, model} = PoolModel.ask(model)
    {one, model} = PoolModel.ask(model, key: :k, affinity: :strict)
    {two, model} = PoolModel.ask(model, key: :k, affinity: :strict)
    model = PoolModel.give_back(model, a)
    mine = pid(model, one)
    model = PoolModel.give_back(model, b)
    assert model.waiting == [two]
    model = PoolModel.give_back(model, one)
    assert pid(model, two) == mine
  end

  test "beyond :max_keys the key is forgotten that was not used for longest" do
    model = started(size: 3, max_keys: 2)

    lend = fn model, key ->
      {lease, model} = PoolModel.ask(model, key: key)
      {pid(model, lease), PoolModel.give_back(model, lease)}
    end

    {first, model} = lend.(model, :a)
    {second, model} = lend.(model, :b)
    {^first, model} = lend.(model, :a)
    {_third, model} = lend.(model, :c)
    {^first, model} = lend.(model, :a)
    # The next one is not the same by chance.
    {^second, model} = lend.(model, nil)
    {again, _model} = lend.(model, :b)
    refute again == second
  end

  test "a launch that hangs does not hold up others, and a warm-up that hangs is a failure" do
    model = PoolModel.new(size: 2, launches: 1, launch_timeout: 1_000)
    assert states(model) == [:launching, :pending]
    model = PoolModel.pass(model, 1_000)
    assert states(model) == [:starting, :launching]
    # It is of use after all.
    assert states(PoolModel.launched(model, 1) |> PoolModel.ready(1)) == [:idle, :launching]

    model = PoolModel.new(size: 1, warm_up: {:a, :function, []}, warm_up_timeout: 1_000)
    model = model |> PoolModel.launched(1) |> PoolModel.ready(1)
    assert states(model) == [:warming]
    model = PoolModel.pass(model, 1_000)
    assert {[:stopping], 1} = {states(model), model.seen.cancel_warm_up}
    model = PoolModel.down(model, 1)
    assert %Snakepit.Error{operation: :warm_up, reason: :timeout} = model.roster.last_error
  end

  test "a worker that begins with a new process is warmed up again" do
    model = started(size: 1, warm_up: {:a, :function, []})
    {lease, model} = PoolModel.ask(model)
    # Also if that process is ready before the worker is given back.
    model = model |> PoolModel.lost(1) |> PoolModel.ready(1) |> PoolModel.give_back(lease)
    assert states(model) == [:warming]
    model = PoolModel.warmed(model, 1, :ok) |> PoolModel.lost(1)
    assert {[:starting], :running} = {states(model), model.workers[worker(model, :running)].state}
    assert states(PoolModel.ready(model, 1)) == [:warming]
  end
end
