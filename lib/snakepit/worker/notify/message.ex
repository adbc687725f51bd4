defmodule Snakepit.Worker.Notify.Message do
  @moduledoc false

  # A message of `sd_notify(3)`, taken apart: lines of `NAME=value`. Names that mean nothing here are left out, among
  # them `MAINPID`, because the worker's process is the one that it has started.

  alias Snakepit.Output.Tail

  # A few weeks, which a timer can wait for.
  @longest_ms 0x7FFFFFFF

  @type t :: %{
          optional(:ready) => true,
          optional(:reloading) => true,
          optional(:stopping) => true,
          optional(:status) => String.t(),
          optional(:address) => String.t(),
          optional(:watchdog) => :alive | :trigger,
          optional(:watchdog_ms) => pos_integer(),
          optional(:extend_ms) => non_neg_integer()
        }

  @doc """
  Returns what a message says.

      iex> Snakepit.Worker.Notify.Message.parse("READY=1\\nSTATUS=Listening\\nMAINPID=7")
      %{ready: true, status: "Listening"}
      iex> Snakepit.Worker.Notify.Message.parse("EXTEND_TIMEOUT_USEC=2500000")
      %{extend_ms: 2500}

  """
  @spec parse(binary()) :: t()
  def parse(text),
    do: for(line <- String.split(text, "\n"), pair <- pair(line), into: %{}, do: pair)

  defp pair("READY=1"), do: [ready: true]
  defp pair("RELOADING=1"), do: [reloading: true]
  defp pair("STOPPING=1"), do: [stopping: true]
  defp pair("STATUS=" <> text), do: [status: Tail.text(text)]
  defp pair("X_SNAKEPIT_ADDRESS=" <> text), do: [address: Tail.text(text)]
  defp pair("WATCHDOG=1"), do: [watchdog: :alive]
  defp pair("WATCHDOG=trigger"), do: [watchdog: :trigger]
  defp pair("WATCHDOG_USEC=" <> number), do: for(ms <- ms(number), do: {:watchdog_ms, max(ms, 1)})
  defp pair("EXTEND_TIMEOUT_USEC=" <> number), do: for(ms <- ms(number), do: {:extend_ms, ms})
  defp pair(_other), do: []

  # Microseconds. A part of a millisecond counts as one.
  defp ms(number) do
    case Integer.parse(number) do
      {us, ""} when us >= 0 -> [us |> Kernel.+(999) |> div(1_000) |> min(@longest_ms)]
      _no_number -> []
    end
  end
end
