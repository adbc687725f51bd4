defmodule Snakepit.Test.Eventually do
  @moduledoc "Waiting for what has no notification, with a deadline instead of a hope."

  @doc "Runs `fun` until it gives a truthy value, which is returned; flunks after `timeout_ms`."
  def eventually(fun, timeout_ms \\ 5_000) do
    deadline = System.monotonic_time(:millisecond) + timeout_ms
    poll(fun, deadline)
  end

  defp poll(fun, deadline) do
    cond do
      value = fun.() ->
        value

      System.monotonic_time(:millisecond) > deadline ->
        ExUnit.Assertions.flunk("still not so at the deadline")

      true ->
        receive do
        after
          5 -> poll(fun, deadline)
        end
    end
  end
end
