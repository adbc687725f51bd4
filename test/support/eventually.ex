defmodule Snakepit.Test.Eventually do
  @moduledoc "Waiting for what has no notification, with a deadline instead of a hope."

  @doc "Runs `fun` until it gives a truthy value, which is returned; flunks after `timeout_ms`."
  def eventually(fun, timeout_ms \\ 5_000) do
    poll(fun, deadline(timeout_ms)) || ExUnit.Assertions.flunk("still not so at the deadline")
  end

  @doc "Whether `fun` gives a truthy value before the time is up."
  def eventually?(fun, timeout_ms), do: !!poll(fun, deadline(timeout_ms))

  defp deadline(timeout_ms), do: System.monotonic_time(:millisecond) + timeout_ms

  defp poll(fun, deadline) do
    cond do
      value = fun.() ->
        value

      System.monotonic_time(:millisecond) > deadline ->
        nil

      true ->
        receive do
        after
          5 -> poll(fun, deadline)
        end
    end
  end
end
