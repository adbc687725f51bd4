defmodule Snakepit.AlignedTimer do
  @moduledoc false

  # Times for periodic work, aligned so that everybody who works with the same period, or a multiple of it,
  # does so at the same time. To wake the BEAM costs more than most of that work.
  #
  # All times are milliseconds of monotonic time.

  @doc "The next multiple of `interval_ms`."
  @spec next(pos_integer()) :: integer()
  def next(interval_ms),
    do: at_or_before(System.monotonic_time(:millisecond) + interval_ms, interval_ms)

  @doc "The last multiple of `interval_ms` up to `time_ms`."
  @spec at_or_before(integer(), pos_integer()) :: integer()
  def at_or_before(time_ms, interval_ms), do: time_ms - Integer.mod(time_ms, interval_ms)
end
