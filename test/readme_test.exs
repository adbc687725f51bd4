defmodule Snakepit.ReadmeTest do
  use ExUnit.Case, async: true

  @root Path.expand("..", __DIR__)
  @readme File.read!(Path.join(@root, "README.md"))

  test "every snippet of a program is taken from an example that the tests run" do
    snippets = Regex.scan(~r/<!-- from (\S+) -->\n```elixir\n(.*?)```/s, @readme)
    assert length(snippets) == 3

    for [_, path, snippet] <- snippets do
      assert File.read!(Path.join(@root, path)) =~ snippet,
             "#{path} does not contain:\n#{snippet}"

      assert File.read!(Path.join(@root, "test/examples_test.exs")) =~ Path.basename(path)
    end
  end

  test "every file that it points to is there" do
    paths = for [_, path] <- Regex.scan(~r/\]\(([^)#:]+)\)/, @readme), do: path
    assert length(paths) > 10
    for path <- paths, do: assert(File.exists?(Path.join(@root, path)), path)
  end
end
