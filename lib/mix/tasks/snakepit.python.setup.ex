defmodule Mix.Tasks.Snakepit.Python.Setup do
  @shortdoc "Makes the Python environments that pools use"

  @moduledoc """
  Makes Python environments beforehand, so that the application starts without a network.

      $ mix snakepit.python.setup

  makes those of the configuration:

      config :my_app, :python, {:uv, requirements: ["numpy==2.2.*"], python: "3.12"}
      config :snakepit, python_environments: [{:my_app, :python}]

  Each is a `:python` of `Snakepit.Python`, or the application and key that have one. Arguments are requirements of one
  more environment:

      $ mix snakepit.python.setup "numpy==2.2.*" --python 3.12 --dir /app/python

  For a release, set `SNAKEPIT_PYTHON_DIR` to the same directory here and where it runs, and copy that directory into
  the image: environments name their paths. They need an interpreter of the same path too; with `--python`, `uv` keeps
  those in `UV_PYTHON_INSTALL_DIR`.
  """

  use Mix.Task

  alias Snakepit.Python.Environment

  @switches [python: :string, dir: :string]

  @impl true
  def run(arguments) do
    {opts, requirements} = OptionParser.parse!(arguments, strict: @switches)
    Mix.Task.run("app.config")
    {:ok, _started} = Application.ensure_all_started(:snakepit)

    configured = for given <- configured(), do: with_dir(given, opts[:dir])
    asked = if requirements == [], do: [], else: [{:uv, [requirements: requirements] ++ opts}]

    if configured ++ asked == [],
      do: Mix.raise("there is no Python environment to make: see mix help snakepit.python.setup")

    Enum.each(configured ++ asked, &make/1)
  end

  defp configured do
    for given <- Application.get_env(:snakepit, :python_environments, []) do
      case given do
        {app, key} when is_atom(app) and is_atom(key) -> Application.fetch_env!(app, key)
        python -> python
      end
    end
  end

  defp with_dir({:uv, given}, dir) when dir != nil, do: {:uv, Keyword.put(given, :dir, dir)}
  defp with_dir(python, _dir), do: python

  defp make(python) do
    unless Environment.valid?(python),
      do: Mix.raise("expected #{Environment.expected()}, got: #{inspect(python)}")

    case Environment.interpreter(python) do
      {:ok, path} -> Mix.shell().info("#{inspect(python)}: #{path}")
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end
end
