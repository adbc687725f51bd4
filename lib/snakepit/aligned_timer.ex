defmodule Snakepit.AlignedTimer do
  @moduledoc false

  # Times for periodic work. All work with the same period, or a multiple of it, is done at the same time,
  # because waking the BEAM takes longer than most of that work.
  #
  # All times are milliseconds of monotonic time.

  @doc "Returns the next multiple of `interval_ms`."
  @spec next(pos_integer()) :: integer()
  def next(interval_ms),
    do: at_or_before(System.monotonic_time(:millisecond) + interval_ms, interval_ms)

  @doc "Returns the last multiple of `interval_ms` up to `time_ms`."
  @spec at_or_before(integer(), pos_integer()) :: integer()
  def at_or_before(time_ms, interval_ms), do: time_ms - Integer.mod(time_ms, interval_ms)
end
