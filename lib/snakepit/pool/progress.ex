defmodule Snakepit.Pool.Progress do
  @moduledoc false

  # A line on the terminal while a pool takes long to start. It is only written if the program owns its
  # terminal (`library_mode: false`), and if there is one.

  @patience_ms 1_000
  @interval_ms 200

  defstruct shown?: false

  @type t :: %__MODULE__{shown?: boolean()}

  @doc "Sends the caller `:progress` when it is time to write the line."
  def start(config) do
    if not config.library_mode and terminal?(),
      do: Process.send_after(self(), :progress, @patience_ms)

    %__MODULE__{}
  end

  @doc "Writes how many workers are ready, for the last time if that is settled."
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

  @doc "Ends the line, if one is shown."
  def end_line(progress), do: if(progress.shown?, do: write("\n"))

  defp text(ready, size), do: "Snakepit: #{ready} of #{size} workers are ready"

  defp write(text), do: IO.write(:stderr, text)

  defp terminal?, do: match?({:ok, _columns}, :io.columns(:standard_error))
end
