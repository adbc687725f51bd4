defmodule Snakepit.Terminal.DetachKeyTest do
  use ExUnit.Case, async: true

  alias Snakepit.Terminal.DetachKey

  # What is passed on, and whether the key was among it, in pieces as they were typed.
  defp type(key, pieces) do
    Enum.reduce_while(pieces, {"", DetachKey.new(key)}, fn piece, {passed, key} ->
      case DetachKey.filter(key, piece) do
        {:detach, before} -> {:halt, {:detach, passed <> before}}
        {keys, key} -> {:cont, {passed <> keys, key}}
      end
    end)
  end

  test "everything before the key is passed on, and nothing behind it" do
    assert type("\x1D", ["ls\n", "ab\x1Dcd"]) == {:detach, "ls\nab"}
    assert {"ls\nab", _key} = type("\x1D", ["ls\n", "ab"])
  end

  test "the beginning of a longer key waits for what follows" do
    assert {"a", _held} = type("\x10\x11", ["a\x10"])
    assert {"a\x10b", _key} = type("\x10\x11", ["a\x10", "b"])
    assert type("\x10\x11", ["a\x10", "\x11"]) == {:detach, "a"}
    assert type("\x10\x11", ["\x10\x10", "\x11"]) == {:detach, "\x10"}
    assert type("aab", ["aa", "a", "b"]) == {:detach, "a"}
  end

  test "in whatever pieces keys come, the same comes out" do
    :rand.seed(:exsss, {4, 5, 6})

    for _ <- 1..2_000 do
      key = random(1 + :rand.uniform(3))
      text = random(:rand.uniform(20))
      pieces = for <<byte <- text>>, do: <<byte>>

      case :binary.match(text, key) do
        {at, _length} ->
          assert type(key, pieces) == {:detach, binary_part(text, 0, at)}
          assert type(key, [text]) == {:detach, binary_part(text, 0, at)}

        :nomatch ->
          assert {passed, %DetachKey{held: held}} = type(key, pieces)
          assert passed <> held == text
      end
    end
  end

  # Of two letters, so that beginnings of the key are everywhere.
  defp random(length), do: for(_ <- 1..length, into: "", do: Enum.random(["a", "b"]))
end
