defmodule Snakepit.Output.LinesTest do
  use ExUnit.Case, async: true

  alias Snakepit.Output.Lines

  defp feed(pieces, limit) do
    Enum.reduce(pieces, {:ok, [], Lines.new(limit)}, fn
      piece, {:ok, before, lines} ->
        {state, complete, lines} = Lines.split(lines, piece)
        {state, before ++ complete, lines}

      _piece, too_long ->
        too_long
    end)
  end

  test "lines are the same, whatever pieces they come in" do
    text = "one\n\ntwo\nthree and more\nrest"

    for size <- 1..byte_size(text) do
      pieces = text |> String.to_charlist() |> Enum.chunk_every(size) |> Enum.map(&to_string/1)
      assert {:ok, complete, lines} = feed(pieces, 100)
      assert complete == ["one\n", "\n", "two\n", "three and more\n"]
      assert Lines.rest(lines) == "rest"
    end
  end

  test "thousands may come at once" do
    expected = for number <- 1..5_000, do: String.duplicate("x", rem(number, 90)) <> "\n"
    assert {:ok, complete, lines} = feed([Enum.join(expected) <> "rest"], 100)
    assert complete == expected
    assert Lines.rest(lines) == "rest"
    # None of them keeps the others. Some versions of OTP give a binary more room than it needs.
    assert Enum.all?(complete, &(:binary.referenced_byte_size(&1) < 1_000))

    too_long = String.duplicate("x", 100) <> "\na\n"
    assert {:too_long, ^expected, _lines} = feed([Enum.join(expected) <> too_long], 100)
  end

  test "a line may be as long as the limit, its newline included, and not longer" do
    for pieces <- [["12345\n"], ["123", "45\n"], ["12345", "\n"]] do
      assert {:ok, ["12345\n"], _lines} = feed(pieces, 6)
      assert {:too_long, [], _lines} = feed(pieces, 5)
    end

    # Also one whose end has not come.
    assert {:ok, [], _lines} = feed(["12345"], 6)
    assert {:too_long, [], _lines} = feed(["12345"], 5)
  end

  test "the lines before one that is too long are there" do
    assert {:too_long, ["a\n", "b\n"], _lines} = feed(["a\nb\n12345\nc\n"], 5)
  end

  test "what is only passed on comes in pieces instead" do
    {pieces, lines} = Lines.split_or_cut(Lines.new(5), "ab\n123456")
    assert pieces == ["ab\n", "123456"]
    assert {["7\n"], _lines} = Lines.split_or_cut(lines, "7\n")
  end

  test "a long line costs no more than its length" do
    piece = :binary.copy("x", 1_000)
    {reductions, _} = count(fn -> feed(List.duplicate(piece, 1_000), 10_000_000) end)
    {more, _} = count(fn -> feed(List.duplicate(piece, 10_000), 20_000_000) end)
    assert more < 20 * reductions
  end

  defp count(fun) do
    {:reductions, before} = Process.info(self(), :reductions)
    result = fun.()
    {:reductions, now} = Process.info(self(), :reductions)
    {now - before, result}
  end
end
