defmodule Snakepit.Worker.Deadline do
  @moduledoc false

  # Until when a call to a worker waits. Where something would be lost, the worker says that the time is up, so that
  # it knows; its caller waits a little longer.

  # What the answer may take to arrive.
  @slack_ms 5_000

  @typedoc "A monotonic time of this node."
  @type t :: integer() | :infinity

  @typedoc "What goes with a request: each node has a clock of its own."
  @type sent :: {node(), t(), timeout()} | :infinity

  @doc "The time that is `timeout` from now, for a request to a worker on any node."
  @spec new(timeout()) :: sent()
  def new(:infinity), do: :infinity
  def new(timeout), do: {node(), now() + timeout, timeout}

  @doc """
  When the deadline of a request is here. One from another node counts from its arrival: how long it was on its
  way is not known.
  """
  @spec received(sent()) :: t()
  def received(:infinity), do: :infinity
  def received({node, deadline, _timeout}) when node == node(), do: deadline
  def received({_other_node, _its_deadline, timeout}), do: now() + timeout

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
