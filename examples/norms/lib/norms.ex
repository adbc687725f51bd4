defmodule Norms do
  @doc "The length of a vector."
  def norm(vector) do
    Snakepit.Python.call(Norms.Python, "vectors.norm", [vector])
  end

  @doc "Vectors of growing length, as many as somebody wants."
  def walk(dimensions) do
    Snakepit.Python.stream(Norms.Python, "vectors.walk", [dimensions])
  end

  @doc "Python calls this."
  def scale(length), do: length / 10
end
