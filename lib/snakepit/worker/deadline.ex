defmodule Snakepit.Worker.Deadline do
  @moduledoc false

  # Until when a call to a worker waits. Where something would be lost, the worker says that the time is up, so that
  # it knows; its caller waits a little longer.

  # What the answer may take to arrive.
  @slack_ms 5_000

  @type t :: integer() | :infinity

  @doc "The monotonic time that is `timeout` from now."
  @spec new(timeout()) :: t()
  def new(:infinity), do: :infinity
  def new(timeout), do: now() + timeout

  @doc "How long the caller waits for an answer that the worker gives by the deadline."
  @spec patience(timeout()) :: timeout()
  def patience(:infinity), do: :infinity
  def patience(timeout), do: timeout + @slack_ms

  @doc "Whether the caller has stopped waiting, whatever the answer."
  @spec stale?(t()) :: boolean()
  def stale?(:infinity), do: false
  def stale?(deadline), do: now() >= deadline + @slack_ms

  @doc "Whether the time is up."
  @spec past?(t()) :: boolean()
  def past?(:infinity), do: false
  def past?(deadline), do: now() >= deadline

  defp now, do: :erlang.monotonic_time(:millisecond)
end
