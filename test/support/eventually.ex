defmodule Snakepit.Test.Eventually do
  @moduledoc "Waiting for what has no notification, with a deadline instead of a hope."

  # Longer than a process takes that is only slow.
  @moment_ms 300
  # What is so costs nothing, however long it may take: a machine with other work is no failure.
  @patience_ms 20_000

  @doc "Runs `fun` until it gives a truthy value, which is returned; flunks after `timeout_ms`."
  def eventually(fun, timeout_ms \\ @patience_ms) do
    poll(fun, now(), timeout_ms) || ExUnit.Assertions.flunk("still not so at the deadline")
  end

  @doc "Whether `fun` gives a truthy value before the time is up."
  def eventually?(fun, timeout_ms), do: !!poll(fun, now(), timeout_ms)

  @doc """
  What `fun` gives when nothing moves any more: the same twice, a moment apart. Nothing else tells that
  somebody waits. As long as it gives `nil`, nothing has begun to move.
  """
  def standstill(fun) do
    eventually(fn ->
      before = fun.()
      receive(do: (:never -> :ok), after: (@moment_ms -> :ok))
      if before == fun.(), do: before
    end)
  end

  defp now, do: System.monotonic_time(:millisecond)

  # The longer it has taken, the less often it is looked: most look at every process that there is, and
  # several tests do so at once.
  defp poll(fun, begun, timeout_ms) do
    value = fun.()
    waited_ms = now() - begun

    cond do
      value ->
        value

      waited_ms > timeout_ms ->
        nil

      true ->
        receive do
        after
          5 + min(div(waited_ms, 10), 95) -> poll(fun, begun, timeout_ms)
        end
    end
  end
end
