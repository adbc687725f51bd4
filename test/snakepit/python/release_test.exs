defmodule Snakepit.Python.ReleaseTest do
  # What guides/python.md says, done with its project: an environment, a release, and calls in it.
  use ExUnit.Case, async: true

  import Snakepit.Test.Python, only: [without_uv: 0, uv: 0]

  alias Snakepit.Test.{Beam, Release}

  @moduletag :long
  @moduletag timeout: 300_000
  @moduletag skip: without_uv()

  @root Path.expand("../../..", __DIR__)

  test "the release of the guide has a pool of NumPy workers, without uv" do
    project = Beam.temporary_directory()
    {_output, 0} = System.cmd("cp", ["-r", "#{@root}/examples/norms/.", project])
    path = Path.join(project, "mix.exs")
    File.write!(path, path |> File.read!() |> String.replace(~s("../.."), inspect(@root)))
    environment = [{"SNAKEPIT_PYTHON_DIR", Path.join(project, "environments")}]

    assert {said, 0} =
             Release.mix(project, ["snakepit.python.setup"], [{"SNAKEPIT_UV", uv()} | environment])

    assert said =~ "environments/"
    assert {_said, 0} = Release.mix(project, ["release", "--overwrite", "--quiet"])

    code = """
    {:ok, _} = Application.ensure_all_started(:norms)
    :ok = Snakepit.Pool.await_ready(Norms.Python, 60_000)
    IO.inspect(Norms.norm([3.0, 4.0]))
    {:error, error} = Norms.norm([])
    IO.puts(Exception.message(error))
    IO.inspect(Norms.walk(4) |> Enum.take(3))
    """

    program = Path.join(project, "_build/prod/rel/norms/bin/norms")

    env = [
      {"SNAKEPIT_UV", "/nowhere"},
      {"XDG_STATE_HOME", project},
      {"RELEASE_DISTRIBUTION", "none"} | environment
    ]

    assert {said, 0} = System.cmd(program, ["eval", code], env: env, stderr_to_stdout: true)
    assert said =~ "{:ok, 5.0}\n"
    assert said =~ "ValueError: a vector needs a dimension\n"
    assert said =~ "[0.2, 0.4, 0.6]\n"
  end
end
