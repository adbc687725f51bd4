defmodule Snakepit.HeartbeatMonitor.Pinger do
  @moduledoc false

  # Calls a worker's `:ping` function, which may raise or hang, in a process of its own. That process sends
  # the one that started it `{Snakepit.HeartbeatMonitor.Pinger, pinger, timestamp, alive?}` for each `ask/2`.

  @doc "Starts a pinger, linked to the caller."
  @spec start_link((() -> term()) | (map() -> term()), map()) :: pid()
  def start_link(ping, info) do
    monitor = self()
    spawn_link(fn -> loop(monitor, ping, info) end)
  end

  @doc "Makes the pinger call its function."
  def ask(pinger, timestamp), do: send(pinger, {:ping, timestamp})

  @doc "Ends a pinger, also while its function hangs."
  def kill(pinger) do
    Process.unlink(pinger)
    Process.exit(pinger, :kill)
  end

  defp loop(monitor, ping, info) do
    timestamp = receive(do: ({:ping, timestamp} -> timestamp))
    send(monitor, {__MODULE__, self(), timestamp, alive?(ping, info)})
    loop(monitor, ping, info)
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
