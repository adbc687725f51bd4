defmodule Snakepit.Bench.JSONTest do
  use ExUnit.Case, async: true

  alias Snakepit.Bench.JSON

  test "what is written can be read" do
    for value <- [nil, true, false, 0, -12, 0.25, 1.0e30, "", "µ \"\\ \n \e", [], [1, [2.5, nil]]],
        do: assert(value |> JSON.encode() |> JSON.decode!() == value)

    assert JSON.encode(b: 1, a: [x: :y]) == ~s({"b":1,"a":{"x":"y"}})
    assert JSON.decode!(~s({"b": 1, "a": {"x": "y"}})) == %{"b" => 1, "a" => %{"x" => "y"}}
  end

  test "what others write can be read" do
    assert JSON.decode!(~S( {"a" :[ ],"b":{ } , "c":[1e3,-1.5E-2 , "\u00b5\/\t"]} )) ==
             %{"a" => [], "b" => %{}, "c" => [1000.0, -0.015, "µ/\t"]}
  end

  test "what is not JSON is refused" do
    for text <- [
          "",
          "{",
          "[1,]",
          "{\"a\" 1}",
          "{,}",
          "[1 2]",
          "nul",
          "\"a",
          "1 2",
          "-",
          "\"\\x\""
        ],
        do: assert_raise(ArgumentError, ~r/expected JSON/, fn -> JSON.decode!(text) end)
  end
end
