defmodule Mix.Tasks.Compile.ConsumersTest do
  # Projects of users, and what they have set. Not async: a path dependency shares this project's priv/native.
  use ExUnit.Case, async: false

  import Snakepit.Test.HostProject, only: [environment: 1, mix: 3]

  alias Snakepit.Test.{Archives, Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 120_000
  @root Path.expand("../..", __DIR__)
  @prebuilt Application.app_dir(:snakepit, "priv/native")
  @runs ~s|{:ok, _} = Application.ensure_all_started(:snakepit); IO.puts("id=" <> Snakepit.run_id())|
  @id ~r/id=[0-9a-z]{7}\n/

  defp cat(os_pid_of \\ "cat"),
    do:
      @runs <>
        ~s|; {:ok, w} = Snakepit.Worker.start_link(cmd: ["#{os_pid_of}"], stdio: :pipe, packet: :line); | <>
        ~s|{:ok, "hello\\n"} = Snakepit.Worker.request(w, "hello\\n"); :ok = Snakepit.Worker.stop(w)|

  test "an umbrella under a path with spaces, and its release from elsewhere" do
    directory = Path.join(Beam.temporary_directory(), "an umbrella of mine")
    HostProject.make_umbrella(directory, path: @root)
    environment = [{"MIX_ENV", "prod"}, {"SNAKEPIT_NATIVE_DIR", @prebuilt}]
    assert {output, 0} = mix(directory, ["run", "-e", cat()], environment)
    assert output =~ @id

    # From one of its applications as well.
    assert {output, 0} = mix(Path.join(directory, "apps/one"), ["run", "-e", cat()], environment)
    assert output =~ @id

    assert {_output, 0} = mix(directory, ["release", "all", "--quiet"], environment)
    moved = Path.join(Path.dirname(directory), "the release")
    File.rename!(Path.join(directory, "_build/prod/rel/all"), moved)
    File.rm_rf!(directory)
    elsewhere = Beam.temporary_directory()
    options = [cd: elsewhere, env: environment(elsewhere), stderr_to_stdout: true]
    assert {output, 0} = System.cmd(Path.join(moved, "bin/all"), ["eval", cat()], options)
    assert output =~ @id
  end

  describe "the files of the package, and an archive" do
    setup do
      unless File.exists?(Path.join(@root, ".git")), do: flunk("not a git checkout")
      directory = Path.join(Beam.temporary_directory(), "with spaces")
      package = HostProject.unpack_package(Path.join(directory, "snakepit"))
      project = Path.join(directory, "project")
      HostProject.make(project, path: package)
      archives = Archives.make(directory)

      environment = [
        {"PATH", without_cargo(directory)},
        {"SNAKEPIT_CACHE", Path.join(directory, "cache")},
        {"SNAKEPIT_CHECKSUMS", Path.join(archives, "SHA256SUMS")},
        {"SNAKEPIT_PRECOMPILED", archives}
      ]

      {:ok, project: project, package: package, archives: archives, environment: environment}
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

    test "are enough without Rust: by HTTP, from the cache, and not when it was changed",
         context do
      {server, url} = Archives.serve(context.archives)
      environment = with_setting(context.environment, "SNAKEPIT_PRECOMPILED", url)
      assert {output, 0} = mix(context.project, ["run", "-e", cat()], environment)
      assert output =~ @id
      refute output =~ "Building"
      native = Path.join(context.package, "priv/native")

      for {name, content} <- Archives.content(),
          do: assert(File.read!(Path.join(native, name)) == content)

      :ok = Archives.stop(server)
      File.rm_rf!(native)
      File.rm_rf!(Path.join(context.project, "_build"))
      assert {output, 0} = mix(context.project, ["run", "-e", @runs], environment)
      assert output =~ @id

      [archive] = Path.wildcard(Path.join(context.archives, "*.tar.gz"))
      File.write!(archive, "changed")

      assert {output, status} =
               mix(context.project, ["deps.compile", "--force"], context.environment)

      assert status != 0
      assert output =~ "#{archive} is refused: its checksum is not the one that is known"
    end

    test "of which nobody knows the checksum is refused, and one that is not there is built",
         context do
      unknown = with_setting(context.environment, "SNAKEPIT_CHECKSUMS", nil)
      assert {output, status} = mix(context.project, ["compile"], unknown)
      assert status != 0
      # The one that is shipped.
      assert output =~ "because #{context.package}/native-checksums does not have its checksum"

      for archive <- Path.wildcard(Path.join(context.archives, "*.tar.gz")), do: File.rm!(archive)
      assert {output, status} = mix(context.project, ["compile"], context.environment)
      assert status != 0
      assert output =~ ~r/Snakepit is built from source: .*no such file or directory/
      assert output =~ ~r/cargo was not found.*Before that, .*no such file or directory/
    end

    # As Nerves' tools set them.
    test "for another system leave this one's alone", context do
      native = Path.join(context.package, "priv/native")
      assert {_output, 0} = mix(context.project, ["compile"], context.environment)
      ours = File.read!(Path.join(native, "snakepit_nif.so"))
      triple = "aarch64-unknown-linux-gnu"
      Archives.make_for(context.archives, triple, "of #{triple}")

      nerves = [
        {"MIX_TARGET", "rpi4"},
        {"TARGET_ARCH", "aarch64"},
        {"TARGET_OS", "linux"},
        {"TARGET_ABI", "gnu"},
        {"CROSSCOMPILE", "/opt/nerves/bin/aarch64-nerves-linux-gnu"}
      ]

      built =
        Path.join(context.project, "_build/rpi4_dev/lib/snakepit/priv/native/snakepit_nif.so")

      # The second time mix has made a copy of this machine's there.
      for _ <- 1..2 do
        assert {_output, 0} =
                 mix(context.project, ["deps.compile", "snakepit"], context.environment ++ nerves)

        assert File.read!(built) == "of #{triple}"
        assert File.read!(Path.join(native, "snakepit_nif.so")) == ours
      end

      assert {output, 0} = mix(context.project, ["run", "-e", @runs], context.environment)
      assert output =~ @id
    end
  end
end
