defmodule Mix.Tasks.Compile.SnakepitNative do
  @shortdoc "Builds Snakepit's native code with cargo"

  @moduledoc """
  Builds the Rust workspace in release mode and puts its artefacts into `priv/native`: of the source tree,
  or, where that is read-only, of the build directory.

  Cargo works in the build directory, in one place for all environments, because the release
  profile does not depend on `MIX_ENV`. When no source has changed since the last build, cargo is
  not even asked.

  On Linux the guardian is linked statically, where the system has what that takes (on Debian the package
  that compilers need anyway; Fedora has `glibc-static`). Otherwise it is linked like any other program,
  and starting a process takes a tenth longer.

  ## Without Rust

  Set `SNAKEPIT_NATIVE_DIR` to a directory with prebuilt artefacts: a copy of the `priv/native` of
  a machine that has built them, for the same system and processor. They are copied, and cargo is
  not needed.

  ## Options

    * `--force` - asks cargo even if nothing seems to have changed

  """

  use Mix.Task.Compiler

  @recursive true

  @prebuilt_variable "SNAKEPIT_NATIVE_DIR"

  # Without a place of its own for each start either: what is relocated then is written to, and copied.
  @static "-C target-feature=+crt-static -C relocation-model=static"

  # What cargo calls it on each system, and what it is called in priv/native. `:erlang.load_nif/2`
  # wants `.so` on macOS too.
  @artefacts [
    {["libsnakepit_nif.so", "libsnakepit_nif.dylib"], "snakepit_nif.so"},
    {[], "snakepit_guardian"}
  ]

  @impl true
  def run(args) do
    fingerprint = fingerprint()

    # The link from the build directory to priv may be gone although the artefacts are there.
    link_priv()

    if "--force" not in args and read_manifest() == fingerprint and installed?() do
      {:noop, []}
    else
      with {:ok, directories} <- build(), :ok <- install(directories) do
        # If there was no priv before, there is one to link to now.
        link_priv()
        write_manifest(fingerprint)
        {:ok, []}
      else
        {:error, message} -> fail(message)
      end
    end
  end

  @impl true
  def manifests, do: [manifest()]

  @impl true
  def clean do
    File.rm(manifest())
    File.rm_rf!(target_directory())
    for {_sources, name} <- @artefacts, do: File.rm(Path.join(destination(), name))
    :ok
  end

  defp build do
    case System.get_env(@prebuilt_variable) do
      unset when unset in [nil, ""] -> cargo_build()
      directory -> {:ok, [Path.expand(directory)]}
    end
  end

  defp cargo_build do
    with {:ok, cargo} <- find_cargo(),
         {version, _status} = System.cmd(cargo, ["-vV"], stderr_to_stdout: true),
         :ok <- check_version(version) do
      Mix.shell().info("Building Snakepit's native code (the first time takes a minute)")

      with {:ok, nif} <- build_package(cargo, "snakepit_nif"),
           {:ok, guardian} <- build_guardian(cargo, version),
           do: {:ok, [nif, guardian]}
    end
  end

  # What a fork copies and an `execve` throws away is less if there are no libraries.
  defp build_guardian(cargo, version) do
    with {:unix, :linux} <- :os.type(),
         [_, target] <- Regex.run(~r/^host: (\S+)$/m, version),
         flags = "#{System.get_env("RUSTFLAGS")} #{@static}",
         options = [cd: root(), env: [{"RUSTFLAGS", flags}], stderr_to_stdout: true],
         arguments = arguments("snakepit_guardian") ++ ["--target", target],
         {_output, 0} <- System.cmd(cargo, arguments, options) do
      {:ok, Path.join([target_directory(), target, "release"])}
    else
      # If the source is at fault, building the guardian alone shows it.
      _not_here -> build_package(cargo, "snakepit_guardian")
    end
  end

  defp build_package(cargo, package) do
    options = [cd: root(), into: IO.stream(:stdio, :line), stderr_to_stdout: true]

    case System.cmd(cargo, arguments(package), options) do
      {_output, 0} ->
        {:ok, Path.join(target_directory(), "release")}

      {_output, status} ->
        {:error, "cargo build failed with status #{status}; its output is above"}
    end
  end

  defp arguments(package),
    do: ~w(build --release --locked --quiet -p #{package} --target-dir) ++ [target_directory()]

  defp find_cargo do
    case System.find_executable("cargo") do
      nil ->
        {:error,
         "cargo was not found. Snakepit is partly written in Rust and needs Rust #{required_version()} " <>
           "or newer: install it with rustup (https://rustup.rs) or from your distribution, or point " <>
           "#{@prebuilt_variable} to a directory with prebuilt artefacts"}

      cargo ->
        {:ok, cargo}
    end
  end

  defp check_version(version) do
    required = required_version()

    with [_, found] <- Regex.run(~r/^cargo (\d+\.\d+\.\d+)/, version),
         :lt <- Version.compare(found, required <> ".0") do
      {:error,
       "Rust #{required} or newer is needed, and this is #{found}. Update it, for example with " <>
         "`rustup update stable`, or point #{@prebuilt_variable} to a directory with prebuilt artefacts"}
    else
      # An answer that cannot be read is no reason to refuse: cargo itself checks rust-version.
      _new_enough -> :ok
    end
  end

  defp required_version do
    manifest = File.read!(Path.join(root(), "Cargo.toml"))
    [_, version] = Regex.run(~r/^rust-version *= *"(\d+\.\d+)"/m, manifest)
    version
  end

  defp install(directories) do
    File.mkdir_p!(destination())

    # The last one first: an earlier build may have left the same in another.
    directories = Enum.reverse(directories)

    Enum.reduce_while(@artefacts, :ok, fn {sources, name}, :ok ->
      names = [name | sources]
      candidates = for directory <- directories, one <- names, do: Path.join(directory, one)

      case Enum.find(candidates, &File.regular?/1) do
        nil -> {:halt, {:error, "#{hd(directories)} has none of #{Enum.join(names, ", ")}"}}
        source -> {:cont, replace(source, Path.join(destination(), name))}
      end
    end)
  end

  # By rename: a BEAM that has the old library mapped keeps it. Writing into that file would crash it.
  defp replace(source, target) do
    temporary = "#{target}.#{unique()}.tmp"
    File.cp!(source, temporary)
    File.rename!(temporary, target)
  end

  defp fail(message) do
    Mix.shell().error("** Snakepit: #{message}")

    diagnostic = %Mix.Task.Compiler.Diagnostic{
      compiler_name: "snakepit_native",
      file: Path.join(root(), "Cargo.toml"),
      message: message,
      position: 0,
      severity: :error
    }

    {:error, [diagnostic]}
  end

  # Everything that a build depends on, except the version of Rust.
  defp fingerprint do
    prebuilt = System.get_env(@prebuilt_variable, "")
    sources = Path.wildcard(Path.join(root(), "native/**/*.{rs,toml}"))
    workspace = for name <- ["Cargo.toml", "Cargo.lock"], do: Path.join(root(), name)
    given = if prebuilt == "", do: [], else: Path.wildcard(Path.join(prebuilt, "*"))

    files =
      for path <- sources ++ workspace ++ given, {:ok, stat} <- [File.stat(path, time: :posix)] do
        {path, stat.size, stat.mtime}
      end

    :erlang.phash2({prebuilt, files}, 4_294_967_296)
  end

  defp installed? do
    Enum.all?(@artefacts, fn {_sources, name} -> File.exists?(Path.join(destination(), name)) end)
  end

  defp read_manifest do
    case File.read(manifest()) do
      {:ok, content} -> Integer.parse(content) |> elem_or_nil()
      {:error, _reason} -> nil
    end
  end

  defp elem_or_nil({number, ""}), do: number
  defp elem_or_nil(_other), do: nil

  defp write_manifest(fingerprint) do
    File.mkdir_p!(Path.dirname(manifest()))
    File.write!(manifest(), Integer.to_string(fingerprint))
  end

  defp manifest, do: Path.join(Mix.Project.manifest_path(), "compile.snakepit_native")

  # Mix links priv of the build directory to that of the source, so `Application.app_dir/2` finds it there.
  # Where nothing can be written to the source, as in a container that mounts it, the one of the build
  # directory is a copy, and has the artefacts besides.
  defp link_priv do
    priv = build_priv()

    unless source_writable?() do
      if match?({:ok, _target}, File.read_link(priv)), do: File.rm!(priv)
      File.mkdir_p!(priv)
    end

    Mix.Project.build_structure()
  end

  defp destination do
    if source_writable?(),
      do: Path.join(root(), "priv/native"),
      else: Path.join(build_priv(), "native")
  end

  defp build_priv, do: Path.join(Mix.Project.app_path(), "priv")

  # By trying: rights say nothing of a file system that is read-only.
  defp source_writable? do
    native = Path.join(root(), "priv/native")
    probe = Path.join(native, ".writable.#{unique()}")

    with :ok <- File.mkdir_p(native), :ok <- File.touch(probe), :ok <- File.rm(probe) do
      true
    else
      {:error, _reason} -> false
    end
  end

  # Of two BEAMs that build at the same time as well.
  defp unique, do: "#{System.pid()}.#{System.unique_integer([:positive])}"

  defp target_directory do
    build = Mix.Project.build_path()
    # Beside the environments, so that they share it, unless the user chose one directory for all.
    parent = if System.get_env("MIX_BUILD_PATH"), do: build, else: Path.dirname(build)
    Path.join(parent, "snakepit_native")
  end

  # Mix changes into a dependency's directory before it compiles it.
  defp root, do: File.cwd!()
end
