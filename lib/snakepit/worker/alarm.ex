defmodule Snakepit.Worker.Alarm do
  @moduledoc false

  # One timer for the deadlines of many requests. To start and to cancel one for each of them takes as long as a third
  # of all that a worker does for a request, and hardly any of them ever runs out.
  #
  # So it goes off at the earliest deadline that it was set to, also if that request was answered long ago; then it is
  # set to the earliest of those that are left.

  @typedoc "The timer, and when it goes off."
  @type t :: {reference(), integer()} | nil

  @doc "Has the calling process get `{:timeout, timer, Snakepit.Worker.Alarm}` at that monotonic time, or before."
  @spec set(t(), integer() | :infinity) :: t()
  def set(alarm, :infinity), do: alarm
  def set({_timer, due} = alarm, deadline) when due <= deadline, do: alarm

  def set(alarm, deadline) do
    cancel(alarm)
    {:erlang.start_timer(deadline, self(), __MODULE__, abs: true), deadline}
  end

  @doc "The timer of that message is this one, which is over now; `:other` if it is not."
  @spec went_off(t(), reference()) :: {:ok, nil} | :other
  def went_off({timer, _due}, timer), do: {:ok, nil}
  def went_off(_other, _timer), do: :other

  @doc "Stops it, if there is one."
  @spec cancel(t()) :: term()
  def cancel(nil), do: false
  def cancel({timer, _due}), do: :erlang.cancel_timer(timer)
end
