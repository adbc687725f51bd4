defmodule Snakepit.JSONTest do
  use ExUnit.Case, async: true

  alias Snakepit.JSON

  doctest JSON

  # Another's idea of what JSON is.
  @check """
  import base64, json, sys
  for line in sys.stdin:
      value = json.loads(base64.b64decode(line).decode("utf-8"), parse_constant=lambda name: sys.exit(name))
      print(base64.b64encode(json.dumps(value).encode()).decode(), flush=True)
  """

  defp encode(term), do: term |> JSON.encode() |> IO.iodata_to_binary()

  test "what it writes is JSON to others, whatever the bytes are" do
    :rand.seed(:exsss, {1, 2, 3})
    every = for byte <- 0..255, do: <<byte>>
    random = for _ <- 1..500, do: :rand.bytes(:rand.uniform(40))
    cut = ["a\xF0\x9F\x90", "\xC3", "ok\xED\xA0\x80end", "µ \u{10FFFF} \u2028"]
    texts = every ++ random ++ cut

    encoded = for text <- texts, do: encode(%{text => [text, 1, -2.5, nil, true]})
    assert Enum.all?(encoded, &String.valid?/1)

    input = Enum.map_join(encoded, "", &(Base.encode64(&1) <> "\n"))
    {:ok, %{status: 0, stdout: said}} = Snakepit.run("python3", ["-c", @check], input: input)
    assert length(String.split(said, "\n", trim: true)) == length(texts)
  end

  test "text comes back as it was, and what is no text as the mark for that" do
    for text <- ["", "plain", "\"\\/\b\f\n\r\t\e\0\x7F", "µ€🐍", String.duplicate("a\n", 1_000)],
        do: assert(Snakepit.Bench.JSON.decode!(encode(text)) == text)

    assert encode("a\xFFb\xC3") == ~s("a\uFFFDb\uFFFD")
    assert encode("\xE2\x82") == ~s("\uFFFD\uFFFD")
  end

  test "maps and lists of pairs are objects, and other keys than names are refused" do
    assert encode(%{a: %{}, b: [[], %{}]}) == ~s({"a":{},"b":[[],{}]})
    assert encode([{"z", 1}, {:a, [x: nil]}]) == ~s({"z":1,"a":{"x":null}})
    assert_raise FunctionClauseError, fn -> JSON.encode(%{1 => 2}) end
    # A compiler that sees what it is would warn.
    {pid, []} = Code.eval_string("self()")
    assert_raise FunctionClauseError, fn -> JSON.encode(pid) end
  end
end
