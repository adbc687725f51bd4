defmodule Mix.Tasks.Compile.SnakepitNativeTest do
  # Not async: a path dependency shares this project's priv/native.
  use ExUnit.Case, async: false

  import Snakepit.Test.HostProject, only: [environment: 1, mix: 2, mix: 3, mix: 4]

  alias Snakepit.Test.{Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 600_000
  @root Path.expand("../..", __DIR__)
  @prebuilt Application.app_dir(:snakepit, "priv/native")

  setup do
    %{directory: Beam.temporary_directory()}
  end

  # A copy of what the compiler works on, to be damaged at will.
  defp copy_of_this_project(directory) do
    for name <- ~w(lib native priv/dashboard mix.exs Cargo.toml Cargo.lock),
        do: copy(name, directory)
  end

  defp copy(name, directory) do
    to = Path.join(directory, name)
    File.mkdir_p!(Path.dirname(to))
    File.cp_r!(Path.join(@root, name), to)
  end

  defp program_directory(directory, programs) do
    bin = Path.join(directory, "bin")
    File.mkdir_p!(bin)

    for {name, script} <- programs do
      File.write!(Path.join(bin, name), "#!/bin/sh\n" <> script)
      File.chmod!(Path.join(bin, name), 0o755)
    end

    bin
  end

  test "a project with a path dependency compiles, runs and works as a release", context do
    HostProject.make(context.directory, path: @root)
    environment = [{"MIX_ENV", "prod"}, {"SNAKEPIT_NATIVE_DIR", @prebuilt}]
    code = ~s|IO.puts("id=" <> Snakepit.RunID.generate())|

    assert {output, 0} = mix(context.directory, ["run", "-e", code], environment)
    assert output =~ ~r/id=[0-9a-z]{7}\n/

    assert {_output, 0} = mix(context.directory, ["release", "--quiet"], environment)
    release = Path.join(context.directory, "_build/prod/rel/host")
    # Nothing of the build may be needed any more.
    moved = Path.join(context.directory, "elsewhere")
    File.rename!(release, moved)
    File.rm_rf!(Path.join(context.directory, "_build"))

    assert {output, 0} = System.cmd(Path.join(moved, "bin/host"), ["eval", code])
    assert output =~ ~r/id=[0-9a-z]{7}\n/
  end

  test "an umbrella under a path with spaces, and its release from elsewhere" do
    directory = Path.join(Beam.temporary_directory(), "an umbrella of mine")
    HostProject.make_umbrella(directory, path: @root)
    environment = [{"MIX_ENV", "prod"}, {"SNAKEPIT_NATIVE_DIR", @prebuilt}]
    assert {output, 0} = mix(directory, ["run", "-e", HostProject.dialogue()], environment)
    assert output =~ ~r/id=[0-9a-z]{7}\n/

    # From one of its applications as well.
    assert {output, 0} =
             mix(
               Path.join(directory, "apps/one"),
               ["run", "-e", HostProject.dialogue()],
               environment
             )

    assert output =~ ~r/id=[0-9a-z]{7}\n/

    assert {_output, 0} = mix(directory, ["release", "all", "--quiet"], environment)
    moved = Path.join(Path.dirname(directory), "the release")
    File.rename!(Path.join(directory, "_build/prod/rel/all"), moved)
    File.rm_rf!(directory)
    elsewhere = Beam.temporary_directory()
    options = [cd: elsewhere, env: environment(elsewhere), stderr_to_stdout: true]

    assert {output, 0} =
             System.cmd(Path.join(moved, "bin/all"), ["eval", HostProject.dialogue()], options)

    assert output =~ ~r/id=[0-9a-z]{7}\n/
  end

  # A development BEAM that runs, or was killed, has its files and its socket somewhere; not in what a
  # release is made of.
  test "a release is made while the project runs, has none of its state, and finds it", context do
    HostProject.make(context.directory, path: @root)
    environment = [{"MIX_ENV", "prod"}, {"SNAKEPIT_NATIVE_DIR", @prebuilt}]
    where = ~s|IO.puts("data_dir=" <> Snakepit.Run.current!().data_dir)|
    runs = "#{where}; IO.read(:line)"

    for_port =
      for {name, value} <- environment(context.directory) ++ environment,
          do: {String.to_charlist(name), (value && String.to_charlist(value)) || false}

    port =
      Port.open(
        {:spawn_executable, System.find_executable("mix")},
        [:binary, :exit_status, line: 10_000, args: ["run", "-e", runs]] ++
          [cd: context.directory, env: for_port]
      )

    data_dir = read_data_dir(port)
    assert data_dir == Path.join(context.directory, "state/snakepit/host")

    assert {_output, 0} = mix(context.directory, ["release", "--quiet"], environment)
    release = Path.join(context.directory, "_build/prod/rel/host")
    shipped = Path.wildcard(Path.join(release, "lib/host-*/**"), match_dot: true)
    assert Enum.reject(shipped, &(&1 =~ ~r{/(ebin|consolidated)(/|$)})) == []

    code = "{:ok, _} = Application.ensure_all_started(:host); #{where}"
    options = [env: environment(context.directory)]
    assert {output, 0} = System.cmd(Path.join(release, "bin/host"), ["eval", code], options)
    assert output =~ "data_dir=#{data_dir}\n"
    Port.command(port, "\n")
    assert_receive {^port, {:exit_status, 0}}, 60_000
  end

  defp read_data_dir(port) do
    receive do
      {^port, {:data, {:eol, "data_dir=" <> path}}} -> path
      {^port, {:data, _line}} -> read_data_dir(port)
      {^port, {:exit_status, status}} -> flunk("mix ended with #{status}")
    after
      120_000 -> flunk("mix did not start the project")
    end
  end

  @tag :root
  test "a source tree that is read-only compiles, once, and works as a release", context do
    source = Path.join(context.directory, "source")
    host = Path.join(context.directory, "host")
    File.mkdir_p!(host)
    copy_of_this_project(source)
    copy("priv/python", source)
    HostProject.make(host, path: source)
    environment = [{"MIX_ENV", "prod"}, {"SNAKEPIT_NATIVE_DIR", @prebuilt}]

    script =
      "mount --bind #{source} #{source} && mount -o remount,ro,bind #{source} && exec \"$@\""

    read_only = ["unshare", "--mount", "sh", "-c", script, "sh"]
    code = ~s|IO.puts("id=" <> Snakepit.run_id())|

    assert {output, 0} = mix(host, ["run", "-e", code], environment, read_only)
    assert output =~ ~r/id=[0-9a-z]{7}\n/
    assert Enum.sort(File.ls!(Path.join(source, "priv"))) == ["dashboard", "python"]
    built = Path.join(host, "_build/prod/lib/snakepit/priv")
    assert Enum.sort(File.ls!(built)) == ["dashboard", "native", "python"]
    before = File.stat!(Path.join(built, "native/snakepit_nif.so")).inode

    assert {output, 0} = mix(host, ["deps.compile", "snakepit"], environment, read_only)
    refute output =~ "error"
    assert File.stat!(Path.join(built, "native/snakepit_nif.so")).inode == before

    assert {_output, 0} = mix(host, ["release", "--quiet"], environment, read_only)
    command = Path.join(host, "_build/prod/rel/host/bin/host")
    code = "{:ok, _} = Application.ensure_all_started(:host); #{code}"
    assert {output, 0} = System.cmd(command, ["eval", code], env: environment(host))
    assert output =~ ~r/id=[0-9a-z]{7}\n/
  end

  test "without cargo the error says what is needed", context do
    copy_of_this_project(context.directory)
    bin = program_directory(context.directory, [])

    # Everything that this machine has, but for cargo.
    for directory <- String.split(System.get_env("PATH"), ":"),
        {:ok, names} <- [File.ls(directory)],
        name <- names,
        name not in ["cargo", "rustc"] do
      File.ln_s(Path.join(directory, name), Path.join(bin, name))
    end

    assert {output, status} = mix(context.directory, ["compile"], [{"PATH", bin}])
    assert status != 0
    assert output =~ ~r/cargo was not found.*needs Rust 1\.\d+ or newer: install it with rustup/
    assert output =~ "SNAKEPIT_NATIVE_DIR"
  end

  test "with a cargo that is too old the error says so", context do
    copy_of_this_project(context.directory)

    bin =
      program_directory(context.directory, [{"cargo", "echo 'cargo 1.63.0 (abc 2022-01-01)'"}])

    path = bin <> ":" <> System.get_env("PATH")

    assert {output, status} = mix(context.directory, ["compile"], [{"PATH", path}])
    assert status != 0
    assert output =~ ~r/Rust 1\.\d+ or newer is needed, and this is 1\.63\.0/
  end

  test "a failed build shows cargo's own words, and succeeds once it is mended", context do
    copy_of_this_project(context.directory)
    manifest = Path.join(context.directory, "Cargo.toml")
    good = File.read!(manifest)
    File.write!(manifest, good <> "\n[oops\n")

    assert {output, status} = mix(context.directory, ["compile"])
    assert status != 0
    assert output =~ "[oops"
    assert output =~ "cargo build failed with status"

    File.write!(manifest, good)
    prebuilt = [{"SNAKEPIT_NATIVE_DIR", @prebuilt}]
    assert {_output, 0} = mix(context.directory, ["compile"], prebuilt)
    library = Path.join(context.directory, "priv/native/snakepit_nif.so")
    assert File.exists?(library)

    assert {_output, 0} = mix(context.directory, ["clean"], prebuilt)
    refute File.exists?(library)
  end

  test "a directory without artefacts is refused by name", context do
    copy_of_this_project(context.directory)
    empty = Path.join(context.directory, "empty")

    assert {output, status} =
             mix(context.directory, ["compile"], [{"SNAKEPIT_NATIVE_DIR", empty}])

    assert status != 0
    assert output =~ "#{empty} has none of snakepit_nif.so"
  end
end
