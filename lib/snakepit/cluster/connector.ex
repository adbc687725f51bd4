defmodule Snakepit.Cluster.Connector do
  @moduledoc false

  # Keeps this node connected to the members of the cluster. To connect may take seconds, during which the caller waits,
  # so each attempt is a process of its own, and there is one at a time for each node.

  use GenServer

  alias Snakepit.ProcessLabel

  @pause_ms 1_000

  def start_link(config), do: GenServer.start_link(__MODULE__, config, name: __MODULE__)

  @impl true
  def init(%{members: members}) do
    ProcessLabel.set(__MODULE__)
    {:ok, %{members: members -- [node()], attempts: %{}}, {:continue, :connect}}
  end

  @impl true
  def handle_continue(:connect, state) do
    Process.send_after(self(), :connect, @pause_ms)
    missing = state.members -- [node() | Node.list() ++ Map.values(state.attempts)]

    attempts =
      for member <- missing, into: state.attempts do
        {_pid, monitor} = spawn_monitor(fn -> Node.connect(member) end)
        {monitor, member}
      end

    {:noreply, %{state | attempts: attempts}}
  end

  @impl true
  def handle_info(:connect, state), do: {:noreply, state, {:continue, :connect}}

  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state),
    do: {:noreply, %{state | attempts: Map.delete(state.attempts, monitor)}}

  def handle_info(_stray, state), do: {:noreply, state}
end
