defmodule Snakepit.Test.Release do
  @moduledoc """
  A release of `test/places/shop`, built as users build theirs.
  """

  @project Path.expand("../..", __DIR__)

  @doc "Makes a project in a directory, with Snakepit as a dependency."
  def project(directory) do
    {_output, 0} = System.cmd("cp", ["-r", "#{@project}/test/places/shop/.", directory])
    path = Path.join(directory, "mix.exs")
    source = File.read!(path)
    File.write!(path, String.replace(source, ~s("../../.."), inspect(@project)))
    # With something in it, so that the build has a link to it.
    File.mkdir_p!(Path.join(directory, "priv"))
    File.write!(Path.join(directory, "priv/notes.txt"), "the application's own\n")
    directory
  end

  @doc "Builds the release of a project; gives what mix has said, and its status."
  def build(project), do: mix(project, ["release", "--overwrite", "--quiet"])

  @doc "Runs mix in a project."
  def mix(project, arguments, env \\ []) do
    System.cmd("mix", arguments, cd: project, stderr_to_stdout: true, env: environment(env))
  end

  @doc "The variables with which mix runs in a project: nothing of it is built anew that is there."
  def environment(more) do
    [
      {"MIX_ENV", "prod"},
      {"MIX_BUILD_PATH", nil},
      {"SNAKEPIT_NATIVE_DIR", Application.app_dir(:snakepit, "priv/native")} | more
    ]
  end

  @doc "The program of a release."
  def program(project), do: Path.join(project, "_build/prod/rel/shop/bin/shop")
end
