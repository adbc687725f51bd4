defmodule Snakepit.Test.Snippets do
  @moduledoc """
  The code and the links in a page of documentation, checked against the files of the project.

  A snippet names the file that it is taken from in a comment above it: `<!-- from PATH -->`.
  """

  import ExUnit.Assertions

  @root Path.expand("../..", __DIR__)

  @doc "The text of a page, by its path in the project."
  def page(path), do: File.read!(Path.join(@root, path))

  @doc "Fails unless each snippet of a page is in its file. Returns the paths of those files."
  def assert_taken_from_files(page) do
    for [_, path, snippet] <- Regex.scan(~r/<!-- from (\S+) -->\n```\w+\n(.*?)```/s, page) do
      text = page(path)
      # A part of a function or of a list is indented in the file.
      indented = for indent <- 0..10//2, do: indent(snippet, indent)
      assert Enum.any?(indented, &(text =~ &1)), "#{path} does not contain:\n#{snippet}"
      path
    end
  end

  defp indent(snippet, columns),
    do: Regex.replace(~r/^(?=.)/m, snippet, String.duplicate(" ", columns))

  @doc "The languages of the blocks of code that name no file."
  def languages_without_file(page) do
    rest = Regex.replace(~r/<!-- from \S+ -->\n```\w+\n.*?```/s, page, "")
    for [_, language] <- Regex.scan(~r/^```(\w+)$/m, rest), uniq: true, do: language
  end

  @doc "Fails unless every file that a page in `directory` links to is there. Returns their paths."
  def assert_links(page, directory \\ ".") do
    paths = for [_, path] <- Regex.scan(~r/\]\(([^)#:]+)(?:#[^)]*)?\)/, page), do: path
    for path <- paths, do: assert(File.exists?(Path.join([@root, directory, path])), path)
    paths
  end
end
