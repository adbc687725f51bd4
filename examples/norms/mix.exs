defmodule Norms.MixProject do
  use Mix.Project

  def project do
    [app: :norms, version: "0.1.0", elixir: "~> 1.14", deps: deps()]
  end

  def application do
    [mod: {Norms.Application, []}, extra_applications: [:logger]]
  end

  defp deps do
    [{:snakepit, path: "../.."}]
  end
end
