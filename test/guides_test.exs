defmodule Snakepit.GuidesTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Snippets

  @root Path.expand("..", __DIR__)

  test "every snippet is taken from the project, and no other page has one that is not" do
    paths = assert_taken_from_files(page("guides/getting-started.md"))
    assert length(paths) > 8
    for path <- paths, do: assert(path =~ ~r"^examples/wordy/")

    for guide <- Path.wildcard(Path.join(@root, "guides/*.md")),
        do: assert(languages_without_file(File.read!(guide)) -- ~w(console text) == [], guide)
  end

  test "the snippets on Python are taken from examples that are tested" do
    paths = assert_taken_from_files(page("guides/python.md"))
    assert length(paths) == 7
  end

  test "the snippets on operation are taken from an example and a test" do
    paths = assert_taken_from_files(page("guides/operation.md"))
    assert "examples/operation.exs" in paths and "test/integration/servers_test.exs" in paths
  end

  test "every file that a guide points to is there" do
    for guide <- Path.wildcard(Path.join(@root, "guides/*.md")),
        do: assert_links(File.read!(guide), "guides")
  end
end
