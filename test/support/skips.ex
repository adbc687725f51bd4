defmodule Snakepit.Test.Skips do
  @moduledoc """
  Says at the end of the suite what was left out and why, a line for each reason. `script/test` repeats
  these lines.
  """

  use GenServer

  @impl true
  def init(_options), do: {:ok, %{}}

  @impl true
  def handle_cast({:test_finished, %{state: {why, reason}}}, counts)
      when why in [:skipped, :excluded],
      do: {:noreply, Map.update(counts, reason, 1, &(&1 + 1))}

  # Elixir 1.14 sends the times apart from each other, later versions as a map.
  def handle_cast(event, counts) when elem(event, 0) == :suite_finished do
    for {reason, count} <- Enum.sort(counts), do: IO.puts("skipped: #{count} tests, #{reason}")
    {:noreply, counts}
  end

  def handle_cast(_event, counts), do: {:noreply, counts}
end
