defmodule Snakepit.Worker.DeadlineTest do
  use ExUnit.Case, async: true

  alias Snakepit.Worker.Deadline

  test "the time of a call from this node is that of its start" do
    deadline = Deadline.new(0)
    assert Deadline.past?(Deadline.received(deadline))
    refute Deadline.past?(Deadline.received(Deadline.new(60_000)))
    refute Deadline.past?(Deadline.received(Deadline.new(:infinity)))
    refute Deadline.stale?(Deadline.received(deadline))
  end

  test "the clock of another node says nothing here" do
    {_here, deadline, timeout} = Deadline.new(60_000)

    for other_clock <- [deadline - 1_000_000_000, deadline + 1_000_000_000] do
      received = Deadline.received({:"other@127.0.0.1", other_clock, timeout})
      assert received in deadline..(deadline + timeout)
      refute Deadline.stale?(received)
    end
  end
end
