defmodule Mix.Tasks.Compile.SnakepitNative do
  @shortdoc "Builds Snakepit's native code with cargo"

  @moduledoc """
  Builds the Rust workspace in release mode, or takes a prebuilt archive, and puts library and guardian into
  `priv/native`: of the source tree, or, where that is read-only or the build is for another system, of the build
  directory.

  Cargo works in the build directory, in one place for all environments, because the release
  profile does not depend on `MIX_ENV`. When no source has changed since the last build, cargo is
  not even asked.

  On Linux the guardian is linked statically, where the system has what that takes (on Debian the package
  that compilers need anyway; Fedora has `glibc-static`). Otherwise it is linked like any other program,
  and starting a process takes a tenth longer.

  ## Without Rust

  Set `SNAKEPIT_PRECOMPILED` to a directory or a URL with archives that `script/package` has made, or configure it:

      config :snakepit, native: [precompiled: "https://downloads.example.org/snakepit"]

  An archive is for one version of Snakepit, one version of Erlang's interface for libraries, and one system:
  `snakepit-0.1.0-nif-2.16-aarch64-unknown-linux-gnu.tar.gz`. It is taken only if its SHA-256 is known beforehand:

    * from the file that `SNAKEPIT_CHECKSUMS` or `config :snakepit, native: [checksums: path]` names, or
    * from `native-checksums` in Snakepit's own directory, which has those of published archives

  Both have the format of `sha256sum`. `script/package` writes such a file, `SHA256SUMS`, beside its archives.

  | the archive | and this task |
  |---|---|
  | is there and has its checksum | takes it |
  | is not there, there is no network, or there is none for this system | says so, and builds from source |
  | has another checksum, or none is known for this version | fails |
  | holds anything but library and guardian | fails |

  A copy of what was downloaded is kept below `SNAKEPIT_CACHE` or the user's cache directory
  (`~/.cache/snakepit/archives`), and used without a network as long as its checksum is right. Downloads use the proxies
  that `https_proxy`, `http_proxy` and `no_proxy` name, and the certificates of the system.

  `SNAKEPIT_NATIVE_DIR` goes before all that: a directory with the files themselves, such as a copy of the
  `priv/native` of a machine that has built them for the same system and processor. They are copied, and nothing is
  checked.

  ## For another system

  `CARGO_BUILD_TARGET` says for which one to build, in the names of Rust. Nerves' variables are understood as well:
  `TARGET_ARCH`, `TARGET_OS`, `TARGET_ABI`, and `CROSSCOMPILE`, whose `gcc` links, unless
  `CARGO_TARGET_<TRIPLE>_LINKER` names another linker. The standard library comes from `rustup target add`. A matching
  archive needs none of these programs.

  ## Options

    * `--force` - asks cargo even if nothing seems to have changed

  """

  use Mix.Task.Compiler

  alias Snakepit.Build.{Cargo, Precompiled, Settings}

  @recursive true

  # Beside the artefacts: the system that they are for.
  @stamp ".target"

  # What cargo calls it on each system, and what it is called in priv/native. `:erlang.load_nif/2`
  # wants `.so` on macOS too.
  @artefacts [
    {["libsnakepit_nif.so", "libsnakepit_nif.dylib"], "snakepit_nif.so"},
    {[], "snakepit_guardian"}
  ]

  @impl true
  def run(args) do
    with {:ok, settings} <- settings(),
         {:changed, fingerprint} <- look("--force" in args, settings),
         {:ok, directories} <- artefacts(settings),
         :ok <- install(directories, settings) do
      # If there was no priv before, there is one to link to now. Where it is a copy, another one would bring back what
      # the source tree has for this machine.
      if in_source?(settings), do: Mix.Project.build_structure()
      write_manifest(fingerprint)
      {:ok, []}
    else
      :unchanged -> {:noop, []}
      {:error, message} -> fail(message)
    end
  end

  defp look(force?, settings) do
    fingerprint = fingerprint(settings)
    # The link from the build directory to priv may be gone although the artefacts are there.
    link_priv(settings)

    if not force? and read_manifest() == fingerprint and installed?(settings),
      do: :unchanged,
      else: {:changed, fingerprint}
  end

  @impl true
  def manifests, do: [manifest()]

  @impl true
  def clean do
    File.rm(manifest())
    File.rm_rf!(target_directory())
    # Whatever the settings are; and the modules that read them are gone by now.
    for priv <- [Path.join(root(), "priv"), build_priv()],
        do: File.rm_rf(Path.join(priv, "native"))

    :ok
  end

  defp settings do
    Settings.new(%{
      env: System.get_env(),
      config: Application.get_env(:snakepit, :native, []),
      root: root(),
      version: Mix.Project.config()[:version],
      manifest: File.read!(Path.join(root(), "Cargo.toml")),
      # That of the BEAM: a library has to fit to what loads it.
      host: :erlang.system_info(:system_architecture)
    })
  end

  defp artefacts(%Settings{directory: nil, precompiled: nil} = settings), do: build(settings)
  defp artefacts(%Settings{directory: nil} = settings), do: take(settings)
  defp artefacts(%Settings{directory: directory}), do: {:ok, [directory]}

  defp build(settings),
    do: Cargo.build(%{root: root(), output: target_directory(), target: settings.target})

  defp take(settings) do
    case Precompiled.take(settings) do
      {:ok, files} ->
        {:ok, [unpack(files, settings.archive)]}

      {:unavailable, why} ->
        Mix.shell().info("Snakepit is built from source: #{why}")
        with {:error, message} <- build(settings), do: {:error, "#{message}. Before that, #{why}"}

      {:error, message} ->
        {:error, message}
    end
  end

  defp unpack(files, archive) do
    directory = Path.join(target_directory(), archive.name)
    File.mkdir_p!(directory)

    for {name, content} <- files do
      path = Path.join(directory, name)
      File.write!(path, content)
      File.chmod!(path, 0o755)
    end

    directory
  end

  defp install(directories, settings) do
    destination = destination(settings)
    File.mkdir_p!(destination)

    # The last one first: an earlier build may have left the same in another.
    directories = Enum.reverse(directories)

    with :ok <- install_each(directories, destination),
         do: File.write!(Path.join(destination, @stamp), settings.triple)
  end

  defp install_each(directories, destination) do
    Enum.reduce_while(@artefacts, :ok, fn {sources, name}, :ok ->
      names = [name | sources]
      candidates = for directory <- directories, one <- names, do: Path.join(directory, one)

      case Enum.find(candidates, &File.regular?/1) do
        nil -> {:halt, {:error, "#{hd(directories)} has none of #{Enum.join(names, ", ")}"}}
        source -> {:cont, replace(source, Path.join(destination, name))}
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
  defp fingerprint(settings) do
    sources = Path.wildcard(Path.join(root(), "native/**/*.{rs,toml}"))
    workspace = for name <- ["Cargo.toml", "Cargo.lock"], do: Path.join(root(), name)

    files =
      for path <- sources ++ workspace ++ given(settings),
          {:ok, stat} <- [File.stat(path, time: :posix)],
          do: {path, stat.size, stat.mtime}

    :erlang.phash2({settings, files}, 4_294_967_296)
  end

  defp given(%Settings{directory: nil, precompiled: nil}), do: []

  defp given(%Settings{directory: nil} = settings),
    do: [settings.checksums, Path.join(settings.precompiled, settings.archive.name)]

  defp given(%Settings{directory: directory}), do: Path.wildcard(Path.join(directory, "*"))

  # What mix has copied from the source tree may be for another system.
  defp installed?(settings) do
    destination = destination(settings)

    File.read(Path.join(destination, @stamp)) == {:ok, settings.triple} and
      Enum.all?(@artefacts, fn {_sources, name} -> File.exists?(Path.join(destination, name)) end)
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
  # directory is a copy, and has the artefacts besides. So it is for another system: this one's stay in the source.
  defp link_priv(settings) do
    priv = build_priv()

    unless in_source?(settings) do
      if match?({:ok, _target}, File.read_link(priv)), do: File.rm!(priv)
      File.mkdir_p!(priv)
    end

    Mix.Project.build_structure()
  end

  defp destination(settings) do
    if in_source?(settings),
      do: Path.join(root(), "priv/native"),
      else: Path.join(build_priv(), "native")
  end

  defp in_source?(settings), do: not settings.foreign? and source_writable?()

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
