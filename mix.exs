defmodule Snakepit.MixProject do
  use Mix.Project

  @version "0.1.0"
  @no_tests ["test/chaos/", "test/fixtures/", "test/places/", "test/soak/"]

  def project do
    [
      app: :snakepit,
      version: @version,
      elixir: "~> 1.14",
      # Last: the compiler is one of this project's own modules.
      compilers: Mix.compilers() ++ [:snakepit_native],
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: [],
      test_coverage: [tool: Snakepit.Test.Coverage],
      # What tests run and is no test; newer versions of mix would ask about it.
      test_ignore_filters: [&String.starts_with?(&1, @no_tests)],
      description: "Runs external OS processes and never leaves one behind",
      package: package()
    ]
  end

  def application do
    [mod: {Snakepit.Application, []}, extra_applications: [:logger, :crypto]]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support", "bench/support"]
  defp elixirc_paths(_env), do: ["lib"]

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      files:
        ~w(lib native priv/python .cargo/config.toml Cargo.toml Cargo.lock mix.exs README.md CHANGELOG.md LICENSE)
    ]
  end
end
