defmodule Snakepit.Guardian.Child do
  @moduledoc false

  # What `Snakepit.Guardian` knows of one child: who owns it, how far it is, and who waits for it.

  alias Snakepit.Error

  @enforce_keys [:id, :owner, :monitor]
  defstruct [
    :id,
    :owner,
    :monitor,
    :releasing,
    :failure,
    phase: :assigned,
    # Whether somebody has asked for the end of all children, and so of this one.
    asked?: false,
    stopping: [],
    reading: []
  ]

  @type t :: %__MODULE__{phase: :assigned | :released | :running | :exited | :failed}

  @doc "Answers everyone who waits, and tells the owner, when there will be no other answer."
  def fail(%__MODULE__{} = child, reason) do
    answer(child, reason)
    send(child.owner, {Snakepit.Guardian, child.id, reason})
  end

  @doc "Answers everyone who waits."
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
      for(from <- child.reading, do: {:output_tail, from})
  end
end
