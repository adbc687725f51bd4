defmodule Mix.Tasks.Compile.GitDependencyTest do
  # Apart from the other tests of the compiler: it shares nothing with this project, and may run beside
  # all others.
  use ExUnit.Case, async: true

  import Snakepit.Test.HostProject, only: [mix: 2, mix: 3]

  alias Snakepit.Test.{Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 600_000
  @root Path.expand("../..", __DIR__)

  # All of the Rust code is built from nothing. What is tested is that it is, not how well it is optimised.
  @quickly [{"CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"}, {"CARGO_PROFILE_RELEASE_LTO", "off"}]

  @commit ~w(-c user.name=tests -c user.email=tests@example.org commit --quiet --message package)

  unless File.exists?(Path.join(@root, ".git")), do: @moduletag(skip: "not a git checkout")

  # Of all ways to get it this is the one that is built from nothing, so it is a package that is got: whatever a build
  # needs and the package lacks is missing here.
  test "what the package has is enough for cargo, as a git dependency; nothing slow happens the second time" do
    directory = Beam.temporary_directory()
    package = HostProject.unpack_package(Path.join(directory, "package"))
    for arguments <- [~w(init --quiet), ~w(add --all), @commit], do: git(package, arguments)

    project = Path.join(directory, "a project")
    HostProject.make(project, git: "file://" <> package)
    assert {_output, 0} = mix(project, ["deps.get"])
    assert {output, 0} = mix(project, ["compile"], @quickly)
    assert output =~ "Building Snakepit's native code"

    code = ~s|IO.puts("id=" <> Snakepit.run_id())|
    assert {output, 0} = mix(project, ["run", "-e", code], @quickly)
    assert output =~ ~r/id=[0-9a-z]{7}\n/
    refute output =~ "Building"

    assert {output, 0} = mix(project, ["deps.compile", "snakepit"], @quickly)
    refute output =~ "Building"
  end

  defp git(directory, arguments),
    do: {_said, 0} = System.cmd("git", arguments, cd: directory, stderr_to_stdout: true)
end
