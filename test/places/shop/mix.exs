defmodule Shop.MixProject do
  use Mix.Project

  # A release as users make them, for script/containers. Its version is a variable because one row is an upgrade.
  def project do
    [
      app: :shop,
      version: System.get_env("SHOP_VERSION", "0.1.0"),
      elixir: "~> 1.14",
      start_permanent: true,
      deps: [{:snakepit, path: "../../.."}],
      releases: [shop: [include_executables_for: [:unix]]]
    ]
  end

  def application, do: [mod: {Shop, []}, extra_applications: [:logger]]
end
