defmodule Snakepit.Cluster.Lease.HolderTest do
  use ExUnit.Case, async: true

  alias Snakepit.Cluster.Lease.{Holder, Rules}

  @lease 10_000
  @members [:a, :b, :c]

  defp asking(now) do
    {holder, actions} = Holder.tick(Holder.new(@members, @lease, 6), now)
    assert for({:send, member, :acquire, 7} <- actions, do: member) == @members
    holder
  end

  defp holding(now) do
    {holder, []} = Holder.granted(asking(now), now + 10, :a, 7, now)
    {holder, [{:held, 7, until} | _]} = Holder.granted(holder, now + 20, :b, 7, now)
    assert until == now + Rules.counts(@lease)
    holder
  end

  test "a majority is needed, and each grant counts from its request" do
    holder = holding(100)
    {holder, []} = Holder.granted(holder, 5_000, :c, 7, 3_000)
    assert {_holder, [{:held, 7, until}]} = Holder.granted(holder, 5_100, :a, 7, 4_000)
    assert until == 3_000 + Rules.counts(@lease)
  end

  test "grants that have come too late begin nothing" do
    holder = asking(0)
    {holder, []} = Holder.granted(holder, 5_000, :a, 7, 0)
    assert {%{phase: :asking}, []} = Holder.granted(holder, 5_001, :b, 7, 0)
  end

  test "answers to an attempt that was given up count for nothing, and are given back" do
    {holder, _actions} = Holder.tick(asking(0), 1_000)

    assert {%{phase: :waiting}, [{:send, :a, :release, 7}]} =
             Holder.granted(holder, 1_001, :a, 7, 0)

    {holder, _actions} = Holder.tick(holder, 2_000)
    {holder, []} = Holder.granted(holder, 2_001, :a, 8, 2_000)

    assert {%{phase: :asking}, [{:send, :b, :release, 7}]} =
             Holder.granted(holder, 2_002, :b, 7, 0)
  end

  test "a lease that was not renewed is lost, and is not given back: the process may be about to die" do
    holder = holding(0)
    {lost, actions} = Holder.tick(holder, Rules.counts(@lease))
    assert [:lost, {:timer, @lease}] = actions
    assert {^lost, []} = Holder.granted(lost, @lease, :a, 7, 9_000)
    # Also if what comes late would renew it.
    {holder, []} = Holder.granted(holder, 9_000, :a, 7, 8_000)
    assert {%{phase: :waiting}, [:lost | _]} = Holder.granted(holder, 20_000, :b, 7, 8_000)
  end

  test "who is refused by a majority waits until the lease may be free, and a little more" do
    {holder, []} = Holder.refused(asking(0), :a, 7, {:taken, 3_000})
    {_holder, actions} = Holder.refused(holder, :b, 7, {:taken, 4_000})
    # Those who have refused have granted nothing.
    assert for({:send, member, :release, 7} <- actions, do: member) == [:c]
    # The third has not answered, and may be free.
    assert {:timer, ms} = List.last(actions)
    assert ms in 3_000..3_100
  end

  test "pauses do not grow while another one has it" do
    {_holder, pauses} =
      Enum.reduce(1..20, {Holder.new(@members, @lease, 0), []}, fn _n, {holder, pauses} ->
        {holder, _actions} = Holder.tick(holder, 0)
        {holder, []} = Holder.refused(holder, :a, holder.token, {:taken, 3_000})
        {holder, actions} = Holder.refused(holder, :b, holder.token, {:taken, 3_000})
        {:timer, ms} = List.last(actions)
        {holder, [ms | pauses]}
      end)

    # The third has not answered, and a majority is free when one of the others is.
    assert Enum.all?(pauses, &(&1 in 3_000..3_050))
  end

  test "who hears that it is free does not wait" do
    {holder, []} = Holder.refused(asking(0), :a, 7, {:taken, 3_000})
    {holder, _actions} = Holder.refused(holder, :b, 7, {:taken, 4_000})
    assert {_holder, [{:timer, ms}]} = Holder.free(holder)
    assert ms <= 100
  end

  test "pauses grow, and are drawn" do
    pauses =
      for _try <- 1..200 do
        {_holder, pauses} =
          Enum.reduce(1..8, {Holder.new(@members, @lease, 0), []}, fn _n, {holder, pauses} ->
            {holder, _actions} = Holder.tick(holder, 0)
            # One has granted, and the others do not answer.
            {holder, []} = Holder.granted(holder, 1, :a, holder.token, 0)
            {holder, actions} = Holder.tick(holder, 1_000)

            {holder,
             [Keyword.fetch!(Enum.filter(actions, &(elem(&1, 0) == :timer)), :timer) | pauses]}
          end)

        pauses
      end

    assert Enum.max(Enum.map(pauses, &hd/1)) > 500
    # Twice as long as an attempt waits at the most, which is a fifth of the lease.
    assert Enum.max(List.flatten(pauses)) <= 4_000
    assert Enum.max(Enum.map(pauses, &List.last/1)) <= 400
    assert length(Enum.uniq(Enum.map(pauses, &hd/1))) > 50
  end

  test "the token of an attempt is greater than all that members have told of, and used once" do
    holder = Holder.seen(asking(0), 41)
    {holder, _actions} = Holder.tick(holder, 1_000)
    {_holder, actions} = Holder.tick(holder, 2_000)
    assert {:send, :a, :acquire, 42} in actions
  end
end
