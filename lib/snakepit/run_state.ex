defmodule Snakepit.RunState do
  @moduledoc """
  The life of a run:

      :initializing → :cleaning_stale → :running → :shutting_down → :terminated

  and no other step.
  """

  alias Snakepit.{Error, Native}

  @states [:initializing, :cleaning_stale, :running, :shutting_down, :terminated]

  @typedoc "Where a run is in its life."
  @type t :: :initializing | :cleaning_stale | :running | :shutting_down | :terminated

  @doc """
  Whether a run may go from one state to the other.

      iex> Snakepit.RunState.valid_transition?(:cleaning_stale, :running)
      true
      iex> Snakepit.RunState.valid_transition?(:initializing, :running)
      false

  """
  @spec valid_transition?(term(), term()) :: boolean()
  def valid_transition?(from, to) when from in @states and to in @states do
    Native.run_state_valid_transition(from, to)
  end

  def valid_transition?(_from, _to), do: false

  @doc """
  The new state, if a run may take that step.

      iex> Snakepit.RunState.transition(:running, :shutting_down)
      {:ok, :shutting_down}
      iex> {:error, error} = Snakepit.RunState.transition(:terminated, :running)
      iex> Exception.message(error)
      "transition failed: a run does not go from :terminated to :running"

  """
  @spec transition(t(), t()) :: {:ok, t()} | {:error, Error.t()}
  def transition(from, to) do
    if valid_transition?(from, to) do
      {:ok, to}
    else
      detail = "a run does not go from #{inspect(from)} to #{inspect(to)}"
      {:error, %Error{operation: :transition, reason: :invalid_transition, detail: detail}}
    end
  end

  @doc "As `transition/2`, but gives the state itself and raises `Snakepit.Error`."
  @spec transition!(t(), t()) :: t()
  def transition!(from, to) do
    case transition(from, to) do
      {:ok, state} -> state
      {:error, error} -> raise error
    end
  end
end
