defmodule Snakepit.ReadmeTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Snippets

  @readme page("README.md")

  test "every snippet of a program is taken from an example that the tests run" do
    paths = assert_taken_from_files(@readme)
    assert length(paths) == 3
    examples = page("test/examples_test.exs")
    for path <- paths, do: assert(examples =~ Path.basename(path), "#{path} is not run")
  end

  test "every file that it points to is there" do
    assert length(assert_links(@readme)) > 10
  end
end
