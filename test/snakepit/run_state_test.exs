defmodule Snakepit.RunStateTest do
  use ExUnit.Case, async: true

  alias Snakepit.{Error, RunState}

  doctest RunState

  @life [:initializing, :cleaning_stale, :running, :shutting_down, :terminated]

  test "a life has four steps and no others" do
    steps = for from <- @life, to <- @life, RunState.valid_transition?(from, to), do: {from, to}
    assert steps == Enum.zip(@life, tl(@life))
  end

  test "no other term is a state" do
    for other <- [:dead, nil, "running", 1, {:running}] do
      refute RunState.valid_transition?(other, :running)
      refute RunState.valid_transition?(:running, other)
      assert {:error, %Error{reason: :invalid_transition}} = RunState.transition(:running, other)
    end
  end

  test "transition!/2 returns the state or raises" do
    assert RunState.transition!(:initializing, :cleaning_stale) == :cleaning_stale

    assert_raise Error, ~r/:running to :initializing/, fn ->
      RunState.transition!(:running, :initializing)
    end
  end

  test "the current run can be fetched, and one that nobody knows cannot" do
    run_id = Snakepit.run_id()
    assert {:ok, %{run_id: ^run_id, state: :running}} = RunState.fetch(run_id)
    assert {:error, %Error{reason: :not_found}} = RunState.fetch("0000000")
    assert RunState.history(0) == []
  end
end
