defmodule Snakepit.HeartbeatMonitor.Pinger do
  @moduledoc false

  # Calls a worker's `:ping` function, which may raise or hang, in a process of its own. Whoever has
  # started it hears `{Snakepit.HeartbeatMonitor.Pinger, pinger, alive?}` for each time that it asks.

  @doc "Starts one, linked: it ends with who asks."
  @spec start_link((() -> term()) | (map() -> term()), map()) :: pid()
  def start_link(ping, info) do
    asker = self()
    spawn_link(fn -> loop(asker, ping, info) end)
  end

  @doc "Asks for a sign of life."
  def ask(pinger), do: send(pinger, :ping)

  @doc "Ends one, wherever its function hangs."
  def kill(pinger) do
    Process.unlink(pinger)
    Process.exit(pinger, :kill)
  end

  defp loop(asker, ping, info) do
    receive(do: (:ping -> :ok))
    send(asker, {__MODULE__, self(), alive?(ping, info)})
    loop(asker, ping, info)
  end

  defp alive?(ping, info) do
    answer = if is_function(ping, 0), do: ping.(), else: ping.(info)
    answer in [true, :ok] or match?({:ok, _}, answer)
  rescue
    _exception -> false
  catch
    _kind, _reason -> false
  end
end
