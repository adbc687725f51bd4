defmodule Snakepit.Cluster.Lease.GrantsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Cluster.Lease.Grants

  @lease 1_000

  defp granted(grants, now, holder, token) do
    assert {:granted, grants} = Grants.acquire(grants, now, "a", holder, token, @lease)
    grants
  end

  test "a lease is granted to one at a time, and to another when it is over" do
    grants = granted(Grants.new(0, 0, 0), 0, :one, 5)
    assert {{:refused, {:taken, 1}}, grants} = Grants.acquire(grants, 999, "a", :two, 6, @lease)
    assert {:granted, grants} = Grants.renew(grants, 999, "a", :one, 5, @lease)
    assert {{:refused, {:taken, 1}}, grants} = Grants.acquire(grants, 1_998, "a", :two, 6, @lease)
    granted(grants, 1_999, :two, 6)
  end

  test "a token has to be greater than all that were granted, for any lease" do
    grants = granted(Grants.new(0, 0, 0), 0, :one, 5)
    assert {{:refused, {:stale, 5}}, grants} = Grants.acquire(grants, 0, "b", :two, 5, @lease)
    assert {:granted, grants} = Grants.acquire(grants, 0, "b", :two, 6, @lease)
    assert grants.number == 6
    # A renewal has the token that it has.
    assert {:granted, _grants} = Grants.renew(grants, 10, "a", :one, 5, @lease)
  end

  test "after a restart nothing is granted for as long as what was forgotten may last" do
    grants = Grants.new(100, @lease, 7)
    assert {{:refused, {:restarted, 1}}, _} = Grants.renew(grants, 1_099, "a", :one, 7, @lease)
    assert {{:refused, {:stale, 7}}, _} = Grants.acquire(grants, 1_100, "a", :one, 7, @lease)
    granted(grants, 1_100, :one, 8)
  end

  test "a lease is given back by its holder with its token, and those who were refused are told" do
    grants = granted(Grants.new(0, 0, 0), 0, :one, 5)
    {_refused, grants} = Grants.acquire(grants, 1, "a", :two, 6, @lease)
    assert {[], ^grants} = Grants.release(grants, "a", :two, 5)
    assert {[], ^grants} = Grants.release(grants, "a", :one, 4)
    assert {[], ^grants} = Grants.release(grants, "b", :one, 5)
    assert {[:two], grants} = Grants.release(grants, "a", :one, 5)
    granted(grants, 2, :two, 6)
  end

  test "what others make it keep is bounded, and what is over is forgotten" do
    grants =
      Enum.reduce(1..10_000, Grants.new(0, 0, 0), fn number, grants ->
        {:granted, grants} = Grants.acquire(grants, 0, "#{number}", :one, number, @lease)
        grants
      end)

    assert {{:refused, :full}, _} = Grants.acquire(grants, 0, "more", :one, 10_001, @lease)
    assert {:granted, _grants} = Grants.renew(grants, 0, "7", :one, 7, @lease)
    grants = Grants.prune(grants, @lease)
    assert {:granted, _grants} = Grants.acquire(grants, @lease, "more", :one, 10_001, @lease)

    grants = granted(Grants.new(0, 0, 0), 0, :one, 1)

    grants =
      Enum.reduce(1..1_000, grants, fn number, grants ->
        {_refused, grants} = Grants.acquire(grants, 0, "a", number, 2, @lease)
        grants
      end)

    assert {told, _grants} = Grants.release(grants, "a", :one, 1)
    assert length(told) == 100
  end
end
