defmodule Snakepit.Pulse do
  @moduledoc false

  # When to do what is done again and again: everybody at the same times. To wake the BEAM costs more
  # than most of it does.

  @doc "The next multiple of `interval_ms` of the clock that nobody sets, in milliseconds."
  @spec next(pos_integer()) :: integer()
  def next(interval_ms),
    do: at_or_before(System.monotonic_time(:millisecond) + interval_ms, interval_ms)

  @doc "The last multiple of `interval_ms` up to `time_ms`."
  @spec at_or_before(integer(), pos_integer()) :: integer()
  def at_or_before(time_ms, interval_ms), do: time_ms - Integer.mod(time_ms, interval_ms)
end
