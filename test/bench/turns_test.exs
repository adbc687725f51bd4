defmodule Snakepit.Bench.TurnsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Bench.Turns

  defp told(way) do
    bench = self()
    {way, fn -> send(bench, way) && 1 end}
  end

  defp heard do
    receive do
      way -> [way | heard()]
    after
      0 -> []
    end
  end

  test "each way has its turn in every round, the first by turns" do
    assert Turns.each([told(:a), told(:b)], rounds: 3) == List.duplicate(%{a: 1, b: 1}, 3)
    assert heard() == [:a, :b, :b, :a, :a, :b]
  end

  test "the first call of a turn is not counted" do
    assert [%{a: [1, 1, 1]}] = Turns.run([told(:a)], rounds: 1, turn_ms: 0, calls: 3..9)
    assert length(heard()) == 4
  end

  test "a turn ends with its time, but not before its least calls, nor after its most" do
    slow = fn -> Process.sleep(20) && 1 end
    assert [%{slow: [1, 1]}] = Turns.run([slow: slow], rounds: 1, turn_ms: 1, calls: 2..100)

    assert [%{quick: quick}] =
             Turns.run([quick: fn -> 1 end], rounds: 1, turn_ms: 60_000, calls: 1..50)

    assert length(quick) == 50
  end

  test "rounds end with their time, but three there are" do
    slow = fn number -> Process.sleep(5) && number end
    assert Turns.repeat([rounds: 9, within_ms: 1], slow) == [1, 2, 3]
    assert Turns.repeat([rounds: 2, within_ms: 0], & &1) == [1, 2]
  end

  test "an option that nobody knows is refused" do
    assert_raise ArgumentError, fn -> Turns.run([told(:a)], round: 1) end
  end

  test "what is compared is compared round by round" do
    rounds = [%{a: [3, 1, 2], b: [4]}, %{a: [8], b: [9, 5, 1]}]
    assert Turns.beside(rounds, :a, :b) == [{2, 4}, {8, 5}]
    assert Turns.beside(rounds, :b, :a, &Enum.sum/1) == [{4, 6}, {15, 8}]
  end
end
