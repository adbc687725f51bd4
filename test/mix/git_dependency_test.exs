defmodule Mix.Tasks.Compile.GitDependencyTest do
  # Apart from the other tests of the compiler: it shares nothing with this project, and may run beside
  # all others.
  use ExUnit.Case, async: true

  import Snakepit.Test.HostProject, only: [mix: 2, mix: 3]

  alias Snakepit.Test.{Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 120_000
  @root Path.expand("../..", __DIR__)

  # All of the Rust code is built from nothing. What is tested is that it is, not how well it is optimised.
  @quickly [{"CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"}, {"CARGO_PROFILE_RELEASE_LTO", "off"}]

  unless File.exists?(Path.join(@root, ".git")), do: @moduletag(skip: "not a git checkout")

  test "a git dependency is built by cargo, and nothing slow happens the second time" do
    # As a user gets it: what is committed and nothing else.
    directory = Beam.temporary_directory()
    HostProject.make(directory, git: "file://" <> @root)
    assert {_output, 0} = mix(directory, ["deps.get"])
    assert {output, 0} = mix(directory, ["compile"], @quickly)
    assert output =~ "Building Snakepit's native code"

    code = ~s|IO.puts("id=" <> Snakepit.RunID.generate())|
    assert {output, 0} = mix(directory, ["run", "-e", code], @quickly)
    assert output =~ ~r/id=[0-9a-z]{7}\n/
    refute output =~ "Building"

    assert {output, 0} = mix(directory, ["deps.compile", "snakepit"], @quickly)
    refute output =~ "Building"
  end
end
