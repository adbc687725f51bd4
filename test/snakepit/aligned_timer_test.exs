defmodule Snakepit.AlignedTimerTest do
  use ExUnit.Case, async: true

  alias Snakepit.AlignedTimer

  test "times are multiples of the interval, before and after the zero of the clock" do
    for {time, aligned} <- [{0, 0}, {99, 0}, {100, 100}, {199, 100}, {-1, -100}, {-100, -100}] do
      assert AlignedTimer.at_or_before(time, 100) == aligned
    end
  end

  test "the next time is later than now, by no more than the interval" do
    before = System.monotonic_time(:millisecond)
    next = AlignedTimer.next(100)
    assert rem(next, 100) == 0
    assert next > before
    assert next <= System.monotonic_time(:millisecond) + 100
  end
end
