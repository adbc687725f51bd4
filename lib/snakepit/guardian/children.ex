defmodule Snakepit.Guardian.Children do
  @moduledoc false

  # The children that a server of the guardian has given away, by their ids and by their owners, and
  # those that wait at the gate for the next caller.

  alias Snakepit.Error
  alias Snakepit.Guardian.{Child, Environment, Grace, Server, Watch, Wire}

  @doc "Assigns waiting children to waiting callers."
  def serve(state) do
    with {{:value, {request, from, monitor}}, waiting} <- :queue.out(state.waiting),
         {{:value, {id, os_pid, identity}}, ready} <- :queue.out(state.ready) do
      # First, so that the caller goes on while this is under way: its release comes after it anyway.
      GenServer.reply(from, {:ok, %{id: id, os_pid: os_pid, identity: identity}})
      {owner, _tag} = from
      child = assign(state, %Child{id: id, owner: owner, monitor: monitor}, request)
      serve(put(%{state | waiting: waiting, ready: ready}, child))
    else
      {:empty, _queue} -> state
    end
  end

  # The caller has seen to the size of its own part. The environment of the BEAM may have grown by any
  # amount: then this child is of no use, and says so when it is released.
  defp assign(state, child, request) do
    {_signal, grace_ms, _mode} = request.stop
    Grace.note(state.run, grace_ms)
    request = Environment.add(request, Environment.changes(Server.environment()))

    case Wire.encode({:spawn, Map.put(request, :id, child.id)}) do
      {:ok, frame} ->
        Wire.transmit(state.port, frame)
        child

      {:error, :e2big} ->
        Wire.command(state.port, {:stop, child.id, :sigkill, 0})
        detail = "the environment of the BEAM has grown too large to be passed on"
        error = %Error{operation: :spawn, reason: :e2big, step: :execve, detail: detail}
        %{child | phase: :failed, failure: error}
    end
  end

  @doc "Keeps a child as it is now."
  def put(state, child) do
    children = Map.put(state.children, child.id, child)
    Watch.running(state.watch, map_size(children))
    %{state | children: children, owners: Map.put(state.owners, child.monitor, child.id)}
  end

  @doc "Changes a child, if it is there."
  def update(state, id, fun) do
    case state.children do
      %{^id => child} -> put(state, fun.(child))
      _gone -> state
    end
  end

  @doc "Forgets one that has failed. Who waits for its end is told by the guardian when it is gone."
  def drop_failed(state, %Child{stopping: []} = child), do: drop(state, child)
  def drop_failed(state, child), do: put(state, child)

  @doc "Forgets a child."
  def drop(state, child) do
    Process.demonitor(child.monitor, [:flush])
    children = Map.delete(state.children, child.id)
    Watch.running(state.watch, map_size(children))
    %{state | children: children, owners: Map.delete(state.owners, child.monitor)}
  end
end
