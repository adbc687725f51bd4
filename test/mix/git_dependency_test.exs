defmodule Mix.Tasks.Compile.GitDependencyTest do
  # Apart from the other tests of the compiler: it shares nothing with this project, and may run beside
  # all others.
  use ExUnit.Case, async: true

  import Snakepit.Test.HostProject, only: [mix: 2]

  alias Snakepit.Test.{Beam, HostProject}

  @moduletag :long
  # All of the Rust code is built from nothing: 40 s on two cores, and more beside other tests.
  @moduletag timeout: 300_000
  @root Path.expand("../..", __DIR__)

  unless File.exists?(Path.join(@root, ".git")), do: @moduletag(skip: "not a git checkout")

  test "a git dependency is built by cargo, and nothing slow happens the second time" do
    # As a user gets it: what is committed and nothing else.
    directory = Beam.temporary_directory()
    HostProject.make(directory, git: "file://" <> @root)
    assert {_output, 0} = mix(directory, ["deps.get"])
    assert {output, 0} = mix(directory, ["compile"])
    assert output =~ "Building Snakepit's native code"

    code = ~s|IO.puts("id=" <> Snakepit.RunID.generate())|
    assert {output, 0} = mix(directory, ["run", "-e", code])
    assert output =~ ~r/id=[0-9a-z]{7}\n/
    refute output =~ "Building"

    assert {output, 0} = mix(directory, ["deps.compile", "snakepit"])
    refute output =~ "Building"
  end
end
