defmodule Snakepit.Guardian.Child do
  @moduledoc false

  # One child as `Snakepit.Guardian` knows it: its owner, its phase, and the callers that wait for something
  # of it.

  alias Snakepit.Error

  @enforce_keys [:id, :os_pid, :identity, :owner, :monitor]
  defstruct [
    :id,
    :os_pid,
    :identity,
    :owner,
    :monitor,
    # The caller that waits for the program to run.
    :releasing,
    :failure,
    phase: :assigned,
    # Whether somebody has asked for the end of all children, and so of this one.
    asked?: false,
    stopping: [],
    reading: [],
    # Callers that want to look at its tree.
    looking: []
  ]

  @type t :: %__MODULE__{phase: :assigned | :released | :running | :exited | :failed}

  @doc "Returns the child as its owner knows it."
  @spec reference(t()) :: Snakepit.Guardian.child()
  def reference(child), do: Map.take(child, [:id, :os_pid, :identity])

  @doc "Answers all callers that wait, and notifies the owner. There will be no other answer."
  def fail(%__MODULE__{} = child, reason) do
    answer(child, reason)
    # One that is being started is not its owner's yet: the answer is all that is expected.
    unless child.releasing, do: send(child.owner, {Snakepit.Guardian, child.id, reason})
    :ok
  end

  @doc "Answers all callers that wait."
  def answer(%__MODULE__{} = child, reason) do
    for {operation, from} <- waiting(child) do
      GenServer.reply(from, {:error, %Error{operation: operation, reason: reason}})
    end

    :ok
  end

  defp waiting(child) do
    releasing = if child.releasing, do: [release: child.releasing], else: []

    releasing ++
      for(from <- child.stopping, do: {:stop, from}) ++
      for(from <- child.reading, do: {:output_tail, from}) ++
      for(from <- child.looking, do: {:usage, from})
  end
end
