defmodule Snakepit.Test.OpenFiles do
  @moduledoc "What the descriptors of this BEAM lead to, by `/proc`."

  @doc "The targets that match a pattern, or are that path: one for each descriptor."
  def matching(pattern) do
    for fd <- File.ls!("/proc/self/fd"),
        # Others may close it meanwhile.
        {:ok, target} <- [File.read_link("/proc/self/fd/#{fd}")],
        matches?(target, pattern),
        do: target
  end

  defp matches?(target, %Regex{} = pattern), do: target =~ pattern
  defp matches?(target, path), do: target == Path.expand(path)
end
