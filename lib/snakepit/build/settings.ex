defmodule Snakepit.Build.Settings do
  @moduledoc false

  # Where native code comes from, as its user has said: by variables for one build, or by
  # `config :snakepit, native: [...]` for a project.

  alias Snakepit.Build.{Archive, Target}
  alias Snakepit.Options

  @schema [
    precompiled: [
      type: :string,
      default: nil,
      shown: "none, cargo builds",
      doc: "a directory or a URL with archives of `script/package`"
    ],
    checksums: [
      type: :path,
      default: nil,
      shown: "`native-checksums` of Snakepit",
      doc: "the file that has the checksums of these archives"
    ]
  ]

  @typedoc """
  `directory` has the artefacts themselves. `target` is what cargo is told, and `triple` the same or that of this BEAM.
  """
  @type t :: %__MODULE__{
          directory: Path.t() | nil,
          precompiled: String.t() | nil,
          checksums: Path.t(),
          cache: Path.t(),
          target: Target.t() | nil,
          triple: String.t(),
          foreign?: boolean(),
          archive: Archive.t()
        }

  @enforce_keys [
    :directory,
    :precompiled,
    :checksums,
    :cache,
    :target,
    :triple,
    :foreign?,
    :archive
  ]
  defstruct @enforce_keys

  @doc false
  def schema, do: @schema

  @doc """
  The settings for sources in `root`. `host` is the architecture of the BEAM, `manifest` the text of `Cargo.toml`.
  """
  @spec new(%{
          env: %{optional(String.t()) => String.t()},
          config: keyword(),
          root: Path.t(),
          version: String.t(),
          manifest: String.t(),
          host: String.t() | charlist()
        }) :: {:ok, t()} | {:error, String.t()}
  def new(given) do
    env = for {name, value} <- given.env, value != "", into: %{}, do: {name, value}
    config = Options.validate!(given.config, @schema, "config :snakepit, :native")
    host = Target.host(given.host)
    target = Target.wanted(env)
    triple = if target, do: target.triple, else: host
    shipped = Path.join(given.root, "native-checksums")

    settings = %__MODULE__{
      directory: env["SNAKEPIT_NATIVE_DIR"],
      precompiled: env["SNAKEPIT_PRECOMPILED"] || config.precompiled,
      checksums: env["SNAKEPIT_CHECKSUMS"] || config.checksums || shipped,
      cache: Path.join(cache(env), "archives"),
      target: target,
      triple: triple,
      foreign?: triple != host,
      archive: Archive.new(given.version, interface(given.manifest), triple)
    }

    check(settings)
  end

  @doc "Whether archives come over the network."
  @spec url?(String.t()) :: boolean()
  def url?(source), do: source =~ ~r{\Ahttps?://}

  # Mix changes into the directory of a dependency, and then they would mean something else.
  defp check(settings) do
    paths = [
      {"SNAKEPIT_NATIVE_DIR", settings.directory},
      {"SNAKEPIT_PRECOMPILED", settings.precompiled},
      {"SNAKEPIT_CHECKSUMS", settings.checksums}
    ]

    case Enum.find(paths, fn {_name, path} -> path && relative?(path) end) do
      nil ->
        {:ok, settings}

      {name, path} ->
        {:error,
         "#{name}, or what is configured for it, has to be an absolute path, got: #{inspect(path)}"}
    end
  end

  defp relative?(path), do: not url?(path) and Path.type(path) != :absolute

  defp cache(%{"SNAKEPIT_CACHE" => directory}), do: Path.expand(directory)
  defp cache(_env), do: :filename.basedir(:user_cache, "snakepit")

  # The oldest one that the library can do with.
  defp interface(manifest) do
    [_, major, minor] = Regex.run(~r/"nif_version_(\d+)_(\d+)"/, manifest)
    "#{major}.#{minor}"
  end
end
