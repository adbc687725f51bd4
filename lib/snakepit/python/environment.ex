defmodule Snakepit.Python.Environment do
  @moduledoc false

  # Which interpreter a pool runs, and how it comes to have its packages: see `Snakepit.Python`.

  alias Snakepit.Error

  def expected, do: ":system, a path, {:venv, directory} or {:uv, options}"

  def valid?(:system), do: true
  def valid?({:venv, directory}), do: is_binary(directory) and directory != ""
  def valid?({:uv, opts}), do: Keyword.keyword?(opts)
  def valid?(path), do: is_binary(path) and path != ""

  @doc "Returns the path of the interpreter; makes the environment if it is not there."
  @spec interpreter(term()) :: {:ok, String.t()} | {:error, Error.t()}
  def interpreter(:system) do
    found = System.find_executable("python3") || System.find_executable("python")
    if found, do: {:ok, found}, else: missing("there is no python3 in the PATH")
  end

  def interpreter({:venv, directory}) do
    path = Path.join(Path.expand(directory), "bin/python")

    if File.exists?(path),
      do: {:ok, path},
      else: missing("#{directory} is no virtual environment: it has no bin/python")
  end

  def interpreter(path) when is_binary(path) do
    cond do
      found = System.find_executable(path) -> {:ok, found}
      File.exists?(path) -> {:ok, Path.expand(path)}
      true -> missing("there is no interpreter #{path}")
    end
  end

  defp missing(detail), do: {:error, %Error{operation: :python, reason: :enoent, detail: detail}}
end
