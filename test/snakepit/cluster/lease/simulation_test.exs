defmodule Snakepit.Cluster.Lease.SimulationTest do
  # The lease's decisions, `Holder` and `Grants`, on a network that loses and delays messages, with members that restart,
  # holders that hang, and clocks that run at different rates: thousands of moments for each seed, and at each one there is
  # at most one process. `native/snakepit_lease` checks the same rules exhaustively, for fewer moments.
  use ExUnit.Case, async: true

  alias Snakepit.Cluster.Lease.{Grants, Holder, Rules}

  @lease 1_000
  @members [:m1, :m2, :m3]
  @holders [:h1, :h2, :h3]
  @horizon 30_000

  # A world: the true time, members and holders with clocks of their own, messages under way.
  defp world(rules) do
    members =
      for member <- @members, into: %{} do
        # As fast as is allowed, half of the time.
        rate = Enum.random([1.0, 1.019])
        {member, %{rate: rate, grants: Grants.new(0, 0, 0), number: 0}}
      end

    holders =
      for holder <- @holders, into: %{} do
        state = %{
          state: Holder.new(@members, @lease, 0),
          timer: :rand.uniform(50),
          kill_at: nil,
          token: nil,
          hangs_until: 0
        }

        {holder, state}
      end

    %{now: 0, members: members, holders: holders, network: [], cut: [], rules: rules, log: []}
  end

  defp member_time(world, member), do: trunc(world.now * world.members[member].rate)

  defp run(seed, rules) do
    :rand.seed(:exsss, {seed, seed, seed})

    Enum.reduce_while(1..@horizon//5, world(rules), fn now, world ->
      world = %{world | now: now} |> fault() |> deliver() |> ticks() |> guardians()

      case for({name, %{kill_at: at}} <- world.holders, at != nil, do: name) do
        [_, _ | _] = two -> {:halt, {:two, now, two, world}}
        _at_most_one -> {:cont, world}
      end
    end)
  end

  defp fault(world) do
    case :rand.uniform(1_500) do
      1 -> restart(world, Enum.random(@members))
      2 -> hang(world, Enum.random(@holders))
      3 -> %{world | cut: for(m <- @members, h <- @holders, :rand.uniform(3) == 1, do: {m, h})}
      4 -> %{world | cut: []}
      5 -> stop(world, Enum.random(@holders))
      _none -> world
    end
  end

  defp restart(world, member) do
    silent = if world.rules == :no_wait, do: 0, else: @lease
    grants = Grants.new(member_time(world, member), silent, world.members[member].number)
    put_in(world.members[member].grants, grants)
  end

  defp hang(world, holder),
    do: put_in(world.holders[holder].hangs_until, world.now + :rand.uniform(3 * @lease))

  # An orderly stop of its process, which is dead when the lease is given back.
  defp stop(world, holder) do
    case world.holders[holder] do
      %{kill_at: at, hangs_until: hangs} when at != nil and hangs < world.now ->
        world = put_in(world.holders[holder].kill_at, nil)
        act(world, holder, Holder.release(world.holders[holder].state))

      _none ->
        world
    end
  end

  # Most messages take a few milliseconds, and some a second. Each is lost with some luck.
  defp transmit(world, from, to, content) do
    pair = if from in @members, do: {from, to}, else: {to, from}
    lost? = pair in world.cut or :rand.uniform(20) == 1
    delay = if :rand.uniform(30) == 1, do: :rand.uniform(2 * @lease), else: :rand.uniform(20)

    if lost?,
      do: world,
      else: %{world | network: [{world.now + delay, to, content} | world.network]}
  end

  defp deliver(world) do
    {due, later} = Enum.split_with(world.network, fn {at, _to, _content} -> at <= world.now end)

    Enum.reduce(due, %{world | network: later}, fn {_at, to, content}, world ->
      hear(world, to, content)
    end)
  end

  defp hear(world, member, {:release, holder, token}) do
    {waiting, grants} = Grants.release(world.members[member].grants, "one", holder, token)
    world = put_in(world.members[member].grants, grants)
    Enum.reduce(waiting, world, &transmit(&2, member, &1, :free))
  end

  defp hear(world, member, {operation, holder, token, sent})
       when operation in [:acquire, :renew] do
    arguments = [
      world.members[member].grants,
      member_time(world, member),
      "one",
      holder,
      token,
      @lease
    ]

    {answer, grants} = apply(Grants, operation, arguments)
    member_now = %{world.members[member] | grants: grants, number: grants.number}
    world = put_in(world.members[member], member_now)
    transmit(world, member, holder, {answer, member, token, sent, grants.number})
  end

  defp hear(world, holder, content) do
    if world.holders[holder].hangs_until > world.now,
      # It reads it when it wakes.
      do: %{
        world
        | network: [{world.holders[holder].hangs_until, holder, content} | world.network]
      },
      else: act(world, holder, answer(world.holders[holder].state, content, world))
  end

  defp answer(state, :free, _world), do: Holder.free(state)

  defp answer(state, {:granted, member, token, sent, number}, world) do
    sent = if world.rules == :from_reply, do: world.now, else: sent
    Holder.granted(Holder.seen(state, number), world.now, member, token, sent)
  end

  defp answer(state, {{:refused, why}, member, token, _sent, number}, _world),
    do: Holder.refused(Holder.seen(state, number), member, token, why)

  defp ticks(world) do
    due =
      for {name, holder} <- world.holders,
          holder.timer != nil and holder.timer <= world.now and holder.hangs_until <= world.now,
          do: name

    Enum.reduce(due, world, fn name, world ->
      world = put_in(world.holders[name].timer, nil)
      act(world, name, Holder.tick(world.holders[name].state, world.now))
    end)
  end

  defp act(world, name, {state, actions}) do
    world = put_in(world.holders[name].state, state)
    Enum.reduce(actions, world, &perform(&2, name, &1))
  end

  defp perform(world, name, {:send, member, :release, token}),
    do: transmit(world, name, member, {:release, name, token})

  defp perform(world, name, {:send, member, operation, token}),
    do: transmit(world, name, member, {operation, name, token, world.now})

  defp perform(world, name, {:timer, ms}), do: put_in(world.holders[name].timer, world.now + ms)
  defp perform(world, _name, :lost), do: world

  defp perform(world, name, {:held, token, until}) do
    holder = world.holders[name]
    ending = if world.rules == :ending_ignored, do: 0, else: Rules.ending(@lease)
    begun = holder.token != token

    # The guardian has killed the process of a lease that was not renewed, and it does not come back.
    if begun or holder.kill_at != nil do
      # Until it is dead, which takes as long as it may.
      dead_at = until - ending + Rules.ending(@lease)
      log = if begun, do: [{world.now, token} | world.log], else: world.log
      world = %{world | log: log}
      update_in(world.holders[name], &%{&1 | token: token, kill_at: dead_at})
    else
      world
    end
  end

  defp guardians(world) do
    holders =
      for {name, holder} <- world.holders, into: %{} do
        dead? = holder.kill_at != nil and holder.kill_at <= world.now
        {name, if(dead?, do: %{holder | kill_at: nil}, else: holder)}
      end

    %{world | holders: holders}
  end

  defp seeds, do: 1..String.to_integer(System.get_env("SNAKEPIT_LEASE_SEEDS", "60"))

  test "there is never more than one process, and tokens grow" do
    begun =
      for seed <- seeds() do
        assert %{log: log} = run(seed, :right)
        tokens = for {_at, token} <- Enum.reverse(log), do: token
        assert tokens == tokens |> Enum.sort() |> Enum.uniq(), "seed #{seed}: #{inspect(log)}"
        length(tokens)
      end

    # That it is not one in which nothing happens.
    assert Enum.sum(begun) > 2 * length(begun)
  end

  for flaw <- [:no_wait, :from_reply, :ending_ignored] do
    test "#{flaw} is found" do
      assert Enum.any?(1..400, &match?({:two, _, _, _}, run(&1, unquote(flaw))))
    end
  end
end
