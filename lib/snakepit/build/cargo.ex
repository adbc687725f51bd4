defmodule Snakepit.Build.Cargo do
  @moduledoc false

  # Library and guardian, as cargo builds them from the sources.

  alias Snakepit.Build.Target

  # Without a place of its own for each start either: what is relocated then is written to, and copied.
  @static "-C target-feature=+crt-static -C relocation-model=static"

  @typedoc """
  `root` is the project's directory, `output` cargo's target directory; `target` is `nil` where cargo may build for the
  machine that it runs on.
  """
  @type settings :: %{root: Path.t(), output: Path.t(), target: Target.t() | nil}

  @doc "Returns the directories in which the artefacts are."
  @spec build(settings()) :: {:ok, [Path.t()]} | {:error, String.t()}
  def build(settings) do
    with {:ok, cargo} <- find(settings.root),
         {version, _status} = System.cmd(cargo, ["-vV"], stderr_to_stdout: true),
         :ok <- check_version(version, settings.root) do
      Mix.shell().info("Building Snakepit's native code (the first time takes a minute)")

      with {:ok, nif} <- package(cargo, "snakepit_nif", settings),
           {:ok, guardian} <- guardian(cargo, version, settings),
           do: {:ok, [nif, guardian]}
    end
  end

  # What a fork copies and an `execve` throws away is less if there are no libraries.
  defp guardian(cargo, version, settings) do
    with triple when triple != nil <- triple(settings.target, version),
         true <- triple =~ "-linux-",
         flags = "#{System.get_env("RUSTFLAGS")} #{@static}",
         target = settings.target || %Target{triple: triple},
         options = [cd: settings.root, env: [{"RUSTFLAGS", flags} | linker(target)]],
         arguments = arguments("snakepit_guardian", settings.output, target),
         {_output, 0} <- System.cmd(cargo, arguments, [stderr_to_stdout: true] ++ options) do
      {:ok, directory(settings.output, target)}
    else
      # If the source is at fault, building the guardian alone shows it.
      _not_here -> package(cargo, "snakepit_guardian", settings)
    end
  end

  defp triple(%Target{triple: triple}, _version), do: triple

  defp triple(nil, version) do
    with [_, triple] <- Regex.run(~r/^host: (\S+)$/m, version), do: triple
  end

  defp package(cargo, package, %{root: root, output: output, target: target}) do
    options = [cd: root, env: linker(target), into: IO.stream(:stdio, :line)]

    case System.cmd(
           cargo,
           arguments(package, output, target),
           [stderr_to_stdout: true] ++ options
         ) do
      {_output, 0} ->
        {:ok, directory(output, target)}

      {_output, status} ->
        {:error, "cargo build failed with status #{status}; its output is above"}
    end
  end

  defp arguments(package, output, target) do
    triple = if target, do: ["--target", target.triple], else: []
    ~w(build --release --locked --quiet -p #{package} --target-dir) ++ [output | triple]
  end

  defp directory(output, nil), do: Path.join(output, "release")
  defp directory(output, target), do: Path.join([output, target.triple, "release"])

  defp linker(%Target{linker: linker, triple: triple}) when linker != nil,
    do: [{Target.linker_variable(triple), linker}]

  defp linker(_target), do: []

  defp find(root) do
    case System.find_executable("cargo") do
      nil ->
        {:error,
         "cargo was not found. Snakepit is partly written in Rust and needs Rust #{required_version(root)} " <>
           "or newer: install it with rustup (https://rustup.rs) or from your distribution, or #{prebuilt()}"}

      cargo ->
        {:ok, cargo}
    end
  end

  defp check_version(version, root) do
    required = required_version(root)

    with [_, found] <- Regex.run(~r/^cargo (\d+\.\d+\.\d+)/, version),
         :lt <- Version.compare(found, required <> ".0") do
      {:error,
       "Rust #{required} or newer is needed, and this is #{found}. Update it, for example with " <>
         "`rustup update stable`, or #{prebuilt()}"}
    else
      # An answer that cannot be read is no reason to refuse: cargo itself checks rust-version.
      _new_enough -> :ok
    end
  end

  defp prebuilt do
    "point SNAKEPIT_PRECOMPILED to where prebuilt archives are, or SNAKEPIT_NATIVE_DIR to a directory with " <>
      "prebuilt artefacts"
  end

  defp required_version(root) do
    [_, version] =
      Regex.run(~r/^rust-version *= *"(\d+\.\d+)"/m, File.read!(Path.join(root, "Cargo.toml")))

    version
  end
end
