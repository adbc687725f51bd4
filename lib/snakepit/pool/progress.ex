defmodule Snakepit.Pool.Progress do
  @moduledoc false

  # A line on the terminal while a pool takes long to start: only for a program that owns its terminal
  # (`library_mode: false`), and only if there is one.

  @patience_ms 1_000
  @interval_ms 200

  @doc "Has the caller get `:progress` when it is time to say something."
  def start(config) do
    if not config.library_mode and terminal?(),
      do: Process.send_after(self(), :progress, @patience_ms)

    %{shown?: false}
  end

  @doc "Says how far it is, for the last time if that is settled."
  def show(progress, ready, size, settled?) do
    cond do
      settled? and progress.shown? ->
        write("\r#{text(ready, size)}\n")
        %{progress | shown?: false}

      settled? ->
        progress

      true ->
        write("\r#{text(ready, size)}")
        Process.send_after(self(), :progress, @interval_ms)
        %{progress | shown?: true}
    end
  end

  @doc "Leaves the line to others, wherever it is."
  def end_line(progress), do: if(progress.shown?, do: write("\n"))

  defp text(ready, size), do: "Snakepit: #{ready} of #{size} workers are ready"

  defp write(text), do: IO.write(:stderr, text)

  defp terminal?, do: match?({:ok, _columns}, :io.columns(:standard_error))
end
