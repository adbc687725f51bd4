defmodule Snakepit.GuaranteesTest do
  use ExUnit.Case, async: true

  @root Path.expand("..", __DIR__)
  @text File.read!(Path.join(@root, "guides/guarantees.md"))
  # Behind the legend, whose names are examples.
  @tables @text |> String.split("\n## ", parts: 2) |> List.last()

  defp named(pattern),
    do: pattern |> Regex.scan(@tables, capture: :all_but_first) |> List.flatten()

  defp files(pattern) do
    for path <- Path.wildcard(Path.join(@root, pattern)), do: Path.basename(path)
  end

  test "whatever is named as evidence exists" do
    tests = Enum.map(named(~r/`(\w+_test)`/), &(&1 <> ".exs"))
    assert length(tests) > 20
    assert Enum.uniq(tests) -- files("test/**/*_test.exs") == []
    assert Enum.uniq(named(~r/`(\w+\.rs)`/)) -- files("native/*/tests/*.rs") == []

    {list, 0} = System.cmd(Path.join(@root, "script/containers"), ["--list"])
    rows = for line <- String.split(list, "\n", trim: true), do: line |> String.split() |> hd()
    assert Enum.uniq(named(~r/\*\*c:\*\*`([\w-]+)`/)) -- rows == []

    for {script, name} <- [
          {"kernels", ~r/\*\*k:\*\*`([\d.]+)`/},
          {"targets", ~r/\*\*t:\*\*`([\w-]+)`/}
        ],
        one <- named(name),
        do: assert(File.read!(Path.join([@root, "script", script])) =~ one)
  end

  test "each row names something, or says that nobody has tried" do
    rows =
      for "| " <> row <- String.split(@tables, "\n"),
          not (row =~ ~r/the BEAM dies \||shown by \|/),
          do: row

    assert length(rows) > 30

    for row <- rows do
      assert row =~ ~r"`|\]\(|\*not tried\*|by itself",
             "nothing shows this: #{row}"
    end
  end
end
