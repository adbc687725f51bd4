defmodule Wordy.MixProject do
  use Mix.Project

  def project do
    [app: :wordy, version: "0.1.0", elixir: "~> 1.14", deps: deps()]
  end

  def application do
    [extra_applications: [:logger], mod: {Wordy.Application, []}]
  end

  defp deps do
    [{:snakepit, path: "../.."}]
  end
end
