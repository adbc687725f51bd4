defmodule Snakepit.Guardian.Children do
  @moduledoc false

  # The children that the server of the guardian has handed out, by their ids and by their owners.

  alias Snakepit.Error
  alias Snakepit.Guardian.{Ahead, Child, Environment, Grace, Server, Watch, Wire}

  @doc "Assigns waiting children to waiting callers."
  def serve(state) do
    with {{:value, {request, {owner, _tag} = from, monitor}}, waiting} <-
           :queue.out(state.waiting),
         {{:value, {id, os_pid, identity}}, ready} <- :queue.out(state.ready) do
      child = %Child{id: id, os_pid: os_pid, identity: identity, owner: owner, monitor: monitor}
      child = if request.release, do: %{child | phase: :released, releasing: from}, else: child

      # First, so that the caller goes on while this is under way: its release comes after it anyway.
      unless request.release, do: GenServer.reply(from, {:ok, Child.reference(child)})
      serve(assign(%{state | waiting: waiting, ready: ready}, child, request))
    else
      {:empty, _queue} -> state
    end
  end

  @doc "Returns an error to all waiting callers, because there is no child for them."
  def refuse(state, error) do
    for {_request, from, monitor} <- :queue.to_list(state.waiting) do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:error, error})
    end

    %{state | waiting: :queue.new()}
  end

  # The caller has checked the size of its own part. The environment of the BEAM may have grown by any amount: then
  # this child cannot run the program, and its release returns the error.
  defp assign(state, child, request) do
    Grace.note(state.run, longest(request.stop, state.grace_ms))
    request = Environment.add(request, Environment.changes(Server.environment()))

    case Wire.encode({:spawn, Map.put(request, :id, child.id)}) do
      {:ok, frame} ->
        Wire.transmit(state.port, frame)
        put(state, child)

      {:error, :e2big} ->
        Wire.command(state.port, {:stop, child.id, :sigkill, 0})
        detail = "the environment of the BEAM has grown too large to be passed on"
        error = %Error{operation: :spawn, reason: :e2big, step: :execve, detail: detail}
        failed(state, child, error)
    end
  end

  defp longest({_signal, grace_ms, _mode, nil}, _default_ms), do: grace_ms

  defp longest({_signal, grace_ms, _mode, {_abort_signal, abort_ms}}, default_ms),
    do: (grace_ms || default_ms) + abort_ms

  @doc "Notes that a child did not run its program, and answers the caller that waits for that."
  def failed(state, child, error) do
    failed = %{child | phase: :failed, failure: error, releasing: nil}

    case child do
      # Its owner gets the error when it releases the child.
      %Child{phase: :assigned} ->
        put(state, failed)

      child ->
        if child.releasing,
          do: GenServer.reply(child.releasing, {:failed, Child.reference(child), error})

        drop_failed(state, failed)
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

  @doc "Forgets a child that has failed. Callers that wait for its end are answered when the guardian reports it."
  def drop_failed(state, %Child{stopping: []} = child), do: drop(state, child)
  def drop_failed(state, child), do: put(state, child)

  @doc "Forgets a child."
  def drop(state, child) do
    Process.demonitor(child.monitor, [:flush])
    children = Map.delete(state.children, child.id)
    Watch.running(state.watch, map_size(children))
    owners = Map.delete(state.owners, child.monitor)
    Ahead.gone(%{state | children: children, owners: owners}, child.identity)
  end
end
