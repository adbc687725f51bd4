defmodule Snakepit.GRPC.ValueTest do
  use ExUnit.Case, async: true

  alias Snakepit.GRPC.{Address, Messages, Value, Wire}

  doctest Address

  defp bytes(term) do
    assert {:ok, message} = Value.encode(term, "it")
    IO.iodata_to_binary(message)
  end

  test "any value comes back as it was, atoms and tuples as their nearest" do
    :rand.seed(:exsss, {7, 8, 9})
    for _ <- 1..2_000, term = term(4), do: assert(Value.decode(bytes(term)) == {:ok, term})
    assert Value.decode(bytes({:a, "b", nil})) == {:ok, ["a", "b", nil]}
    assert Value.decode(bytes(a: 1)) == {:ok, [["a", 1]]}
  end

  defp term(depth) do
    case :rand.uniform(if(depth == 0, do: 7, else: 9)) do
      1 -> Enum.random([nil, true, false, :infinity, :neg_infinity, :nan])
      2 -> :rand.uniform(200) - 100
      3 -> :rand.uniform(0xFFFFFFFFFFFFFFFF) - 0x8000000000000000
      4 -> :rand.normal() * 1.0e10
      5 -> :rand.bytes(:rand.uniform(300))
      6 -> String.duplicate("ä", :rand.uniform(200))
      7 -> ""
      8 -> for _ <- 1..:rand.uniform(4), do: term(depth - 1)
      9 -> for _ <- 1..:rand.uniform(4), into: %{}, do: {term(0), term(depth - 1)}
    end
  end

  test "what cannot be carried is named by its path" do
    for {term, path} <- [
          {self(), "it, #PID"},
          {[1, %{"a" => {make_ref()}}], ~s(it[1]["a"][0], #Reference)},
          {%{~D[2020-01-01] => 1}, "it[~D[2020-01-01]] of a key is a struct (Date)"},
          {[1 | 2], "it is an improper list"},
          {Bitwise.bsl(1, 64), "it is an integer of more than 64 bits"},
          {<<1::3>>, "it, <<1::size(3)>>, cannot be carried"}
        ] do
      assert {:error, text} = Value.encode(term, "it")
      assert String.starts_with?(text, path), text
    end
  end

  test "nesting ends at the same depth both ways" do
    nest = fn depth -> Enum.reduce(1..depth, 1, fn _, inner -> [inner] end) end
    assert {:ok, _} = Value.decode(bytes(nest.(64)))
    assert {:error, _} = Value.encode(nest.(65), "it")

    wire =
      Enum.reduce(1..65, Wire.integer(1, 1), fn _, inner ->
        Wire.bytes(7, Wire.bytes(1, inner))
      end)

    assert Value.decode(IO.iodata_to_binary(wire)) == :error
  end

  test "what is no message is an error, and nothing raises" do
    :rand.seed(:exsss, {1, 1, 1})

    for _ <- 1..5_000 do
      noise = :rand.bytes(:rand.uniform(40))
      assert match?({:ok, _}, Value.decode(noise)) or Value.decode(noise) == :error

      assert match?({:error, _}, Messages.reply("x", noise)) or
               match?({:ok, _}, Messages.reply("x", noise))

      assert match?({:error, _}, Messages.health(noise)) or Messages.health(noise) == :ok
    end
  end

  test "no input makes an atom" do
    name = "never_seen_#{System.unique_integer([:positive])}"
    assert Value.decode(bytes(%{name => name})) == {:ok, %{name => name}}
    assert_raise ArgumentError, fn -> String.to_existing_atom(name) end
  end
end
