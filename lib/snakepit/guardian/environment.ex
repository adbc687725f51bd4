defmodule Snakepit.Guardian.Environment do
  @moduledoc false

  # The guardian has the environment that the BEAM had when it started the guardian. Mostly that is still the
  # same, and comparing takes less time than sending it each time. The process that talks to the guardian
  # compares it. The list is large, and a new process would take longer to make room for it than to read it.

  @type change :: {String.t(), String.t() | nil}

  @doc "Returns how the environment differs from `before`, an earlier result of `:os.env/0`."
  @spec changes([{charlist(), charlist()}]) :: [change()]
  def changes(before) do
    case :os.env() do
      ^before ->
        []

      now ->
        removed = for {name, _value} <- before, not List.keymember?(now, name, 0), do: {name, nil}
        pairs = (now -- before) ++ removed
        for {name, value} <- pairs, do: {text(name), value && text(value)}
    end
  end

  @doc "Adds changes to a request that inherits the environment. What the request says itself wins."
  @spec add(map(), [change()]) :: map()
  def add(request, []), do: request
  def add(%{inherit: false} = request, _changes), do: request

  def add(%{set: set, unset: unset} = request, changes) do
    named = for pair <- set, into: MapSet.new(unset), do: pair |> String.split("=") |> hd()
    new = Enum.reject(changes, fn {name, _value} -> name in named end)
    set = for({name, value} <- new, value != nil, do: "#{name}=#{value}") ++ set
    %{request | set: set, unset: for({name, nil} <- new, do: name) ++ unset}
  end

  defp text(characters), do: :unicode.characters_to_binary(characters)
end
