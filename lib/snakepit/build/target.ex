defmodule Snakepit.Build.Target do
  @moduledoc false

  # The system and processor that native code is built for, by the name that Rust has for it.

  @typedoc "What links for it: a program, or `nil` for the one that cargo knows."
  @type t :: %__MODULE__{triple: String.t(), linker: String.t() | nil}

  @enforce_keys [:triple]
  defstruct [:triple, :linker]

  # As an Erlang's configure names processors, and as Rust does.
  @processors %{
    "amd64" => "x86_64",
    "arm64" => "aarch64",
    "riscv64" => "riscv64gc",
    "armv7l" => "armv7",
    "armv6l" => "arm"
  }
  # What Nerves calls the processors of the first Raspberry Pis. Later 32-bit ones have the seventh architecture.
  @armv6 "arm1176"

  @doc """
  The target that the variables of an environment ask for, or `nil` where they ask for none.

  `CARGO_BUILD_TARGET` goes first. Nerves sets `TARGET_ARCH`, `TARGET_OS`, `TARGET_ABI` and `CROSSCOMPILE`, which is
  the beginning of the names of its compilers; elsewhere `CROSSCOMPILE` is often set alone.
  """
  @spec wanted(%{optional(String.t()) => String.t()}) :: t() | nil
  def wanted(env) do
    env = for {name, value} <- env, value != "", into: %{}, do: {name, value}

    with triple when triple != nil <-
           env["CARGO_BUILD_TARGET"] || of_parts(env) || of_compilers(env["CROSSCOMPILE"]),
         do: %__MODULE__{triple: triple, linker: linker(env, triple)}
  end

  @doc "The target of a BEAM, by its `:erlang.system_info(:system_architecture)`."
  @spec host(String.t() | charlist()) :: String.t()
  def host(architecture) do
    architecture = to_string(architecture)

    case String.split(architecture, "-") do
      [processor, _vendor, "linux", abi] -> linux(processor, abi)
      [processor, "linux", abi] -> linux(processor, abi)
      [processor, _vendor, "darwin" <> _version] -> "#{processor(processor)}-apple-darwin"
      [processor, _vendor, "freebsd" <> _version] -> "#{processor(processor)}-unknown-freebsd"
      _unknown -> architecture
    end
  end

  @doc "What cargo's own variable for the linker of a target is called."
  @spec linker_variable(String.t()) :: String.t()
  def linker_variable(triple),
    do: "CARGO_TARGET_#{triple |> String.upcase() |> String.replace(~r/[-.]/, "_")}_LINKER"

  defp of_parts(%{"TARGET_ARCH" => "arm", "TARGET_OS" => "linux"} = env) do
    version = if String.starts_with?(env["TARGET_CPU"] || "", @armv6), do: "arm", else: "armv7"
    linux(version, env["TARGET_ABI"] || "gnueabihf")
  end

  defp of_parts(%{"TARGET_ARCH" => processor, "TARGET_OS" => "linux"} = env),
    do: linux(processor, env["TARGET_ABI"] || "gnu")

  defp of_parts(_env), do: nil

  defp of_compilers(nil), do: nil
  defp of_compilers(prefix), do: prefix |> Path.basename() |> String.trim_trailing("-") |> host()

  defp linker(env, triple) do
    prefix = env["CROSSCOMPILE"]

    cond do
      env[linker_variable(triple)] -> nil
      prefix -> String.trim_trailing(prefix, "-") <> "-gcc"
      true -> nil
    end
  end

  defp linux(processor, abi), do: "#{processor(processor)}-unknown-linux-#{abi}"

  defp processor(name), do: Map.get(@processors, name, name)
end
