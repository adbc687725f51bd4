defmodule Mix.Tasks.Compile.ArchivesTest do
  # A project that takes archives. It has Snakepit as a package would have it, so this may run beside all others.
  use ExUnit.Case, async: true

  import Snakepit.Test.HostProject, only: [mix: 3]

  alias Snakepit.Test.{Archives, Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 600_000
  @root Path.expand("../..", __DIR__)
  @start ~s|{:ok, _} = Application.ensure_all_started(:snakepit); IO.puts("id=" <> Snakepit.run_id())|

  unless File.exists?(Path.join(@root, ".git")), do: @moduletag(skip: "not a git checkout")

  # Elixir's part is compiled once, below a path with spaces.
  setup_all do
    directory = Path.join(Beam.temporary_directory(), "with spaces")
    package = HostProject.unpack_package(Path.join(directory, "snakepit"))
    project = Path.join(directory, "project")
    HostProject.make(project, path: package)

    {:ok, directory: directory, project: project, package: package, bin: without_cargo(directory)}
  end

  setup context do
    archives = Archives.make(Beam.temporary_directory())

    environment = [
      {"PATH", context.bin},
      {"SNAKEPIT_CACHE", Path.join(archives, "cache")},
      {"SNAKEPIT_CHECKSUMS", Path.join(archives, "SHA256SUMS")},
      {"SNAKEPIT_PRECOMPILED", archives}
    ]

    native = Path.join(context.package, "priv/native")
    File.rm_rf!(native)
    {:ok, archives: archives, native: native, environment: environment}
  end

  # Everything that this machine has, but for cargo.
  defp without_cargo(directory) do
    bin = Path.join(directory, "bin")
    File.mkdir_p!(bin)

    for path <- String.split(System.get_env("PATH"), ":"),
        {:ok, names} <- [File.ls(path)],
        name <- names,
        name not in ["cargo", "rustc"],
        do: File.ln_s(Path.join(path, name), Path.join(bin, name))

    bin
  end

  defp with_setting(environment, name, value),
    do: List.keystore(environment, name, 0, {name, value})

  test "are enough without Rust: by HTTP, then from the cache", context do
    {server, url} = Archives.serve(context.archives)
    environment = with_setting(context.environment, "SNAKEPIT_PRECOMPILED", url)
    assert {output, 0} = mix(context.project, ["run", "-e", HostProject.dialogue()], environment)
    assert output =~ ~r/id=[0-9a-z]{7}\n/

    for {name, content} <- Archives.content(),
        do: assert(File.read!(Path.join(context.native, name)) == content)

    :ok = Archives.stop(server)
    File.rm_rf!(context.native)
    assert {output, 0} = mix(context.project, ["run", "-e", @start], environment)
    assert output =~ ~r/id=[0-9a-z]{7}\n/
  end

  test "that was changed, or that nobody knows, is refused", context do
    [archive] = Path.wildcard(Path.join(context.archives, "*.tar.gz"))
    File.write!(archive, "changed")
    assert {output, status} = mix(context.project, ["compile"], context.environment)
    assert status != 0
    assert output =~ "#{archive} is refused: its checksum is not the one that is known"

    unknown = with_setting(context.environment, "SNAKEPIT_CHECKSUMS", nil)
    assert {output, status} = mix(context.project, ["compile"], unknown)
    assert status != 0
    # The one that is shipped.
    assert output =~ "because #{context.package}/native-checksums does not have its checksum"
  end

  test "that is not there: cargo is asked", context do
    for archive <- Path.wildcard(Path.join(context.archives, "*.tar.gz")), do: File.rm!(archive)
    assert {output, status} = mix(context.project, ["compile"], context.environment)
    assert status != 0
    assert output =~ ~r/Snakepit is built from source: .*no such file or directory/
    assert output =~ ~r/cargo was not found.*Before that, .*no such file or directory/
  end

  # As Nerves' tools set them.
  test "for another system leave this one's alone", context do
    assert {_output, 0} = mix(context.project, ["compile"], context.environment)
    ours = File.read!(Path.join(context.native, "snakepit_nif.so"))
    triple = "aarch64-unknown-linux-gnu"
    Archives.make_for(context.archives, triple, "of #{triple}")

    nerves = [
      {"TARGET_ARCH", "aarch64"},
      {"TARGET_OS", "linux"},
      {"TARGET_ABI", "gnu"},
      {"CROSSCOMPILE", "/opt/nerves/bin/aarch64-nerves-linux-gnu"}
    ]

    built = Path.join(context.project, "_build/dev/lib/snakepit/priv/native/snakepit_nif.so")

    # The second time mix has made a copy of this machine's there.
    for _ <- 1..2 do
      assert {_output, 0} =
               mix(context.project, ["deps.compile", "snakepit"], context.environment ++ nerves)

      assert File.read!(built) == "of #{triple}"
      assert File.read!(Path.join(context.native, "snakepit_nif.so")) == ours
    end

    assert {output, 0} = mix(context.project, ["run", "-e", @start], context.environment)
    assert output =~ ~r/id=[0-9a-z]{7}\n/
  end
end
