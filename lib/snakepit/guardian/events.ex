defmodule Snakepit.Guardian.Events do
  @moduledoc false

  # The events that the guardian sends, and how each changes the state of its server.

  require Logger

  alias Snakepit.{Error, Guardian}
  alias Snakepit.Guardian.{Ahead, Child, Children, Wire}

  @doc "Applies an event: answers the callers that waited for it, and returns the new state of the server."
  @spec handle(tuple() | :pong, map()) :: map()
  def handle({:ready, id, os_pid, identity}, state) do
    Ahead.add(state, {id, os_pid, identity})
  end

  def handle({:fork_failed, reason}, state) do
    case :queue.out(state.waiting) do
      {{:value, {_request, from, monitor}}, waiting} ->
        Process.demonitor(monitor, [:flush])
        GenServer.reply(from, {:error, %Error{operation: :spawn, reason: reason, step: :fork}})
        %{state | waiting: waiting}

      {:empty, _waiting} ->
        state
    end
  end

  def handle({:started, id}, state) do
    Children.update(state, id, fn child ->
      GenServer.reply(child.releasing, {:ok, Child.reference(child)})
      %{child | phase: :running, releasing: nil}
    end)
  end

  def handle({:failed, id, step, reason}, state) do
    # It may have waited at the gate without a caller, and been killed by another process.
    state = Ahead.remove(state, id)
    error = %Error{operation: :spawn, reason: reason, step: step}

    case state.children do
      %{^id => child} -> Children.failed(state, child, error)
      _unknown -> state
    end
  end

  def handle({:exited, id, exit, tail}, state) do
    Children.update(state, id, fn child ->
      exit = if child.asked?, do: Map.put(exit, :asked, true), else: exit
      send(child.owner, {Guardian, id, {:exited, exit, tail}})
      %{child | phase: :exited}
    end)
  end

  def handle({:tree_gone, id, killed, survivors}, state) do
    case state.children do
      %{^id => child} ->
        send(child.owner, {Guardian, id, tree_gone(killed, survivors)})
        for from <- child.stopping, do: GenServer.reply(from, gone(:stop, survivors, :ok))

        # A request that has crossed this on its way gets no answer from the guardian, or one too late.
        Child.answer(%{child | stopping: []}, :esrch)
        Children.drop(state, child)

      _unknown ->
        state
    end
  end

  def handle({:all_gone, stopped, killed, survivors}, state) do
    case state.asking.stop_all do
      [{from, _request} | later] ->
        answer = gone(:stop_all, survivors, {:ok, %{stopped: stopped, killed: killed}})
        GenServer.reply(from, answer)
        ask_next(put_in(state.asking.stop_all, later))

      [] ->
        state
    end
  end

  def handle({:tail, id, tail}, state) do
    Children.update(state, id, fn child ->
      for from <- child.reading, do: GenServer.reply(from, {:ok, tail})
      %{child | reading: []}
    end)
  end

  def handle({:roots, id, roots, ended}, state) do
    Children.update(state, id, fn child ->
      for from <- child.looking, do: GenServer.reply(from, {:ok, roots, ended})
      %{child | looking: []}
    end)
  end

  def handle({:info, info}, state) do
    for from <- state.asking.info, do: GenServer.reply(from, {:ok, info})
    put_in(state.asking.info, [])
  end

  # That it was heard has been noted.
  def handle(:pong, state), do: state

  def handle({:log, level, message}, state) do
    level = if level == :warn, do: :warning, else: level

    if state.log_level != :none and Logger.compare_levels(level, state.log_level) != :lt do
      Logger.log(level, "Snakepit's guardian: #{message}")
    end

    state
  end

  def handle({:refused, reason}, state) do
    Logger.error("Snakepit's guardian does not understand this BEAM: #{reason}")
    state
  end

  @doc """
  Asks for the end of all children. One request is sent at a time, because an answer does not say which request it
  belongs to.
  """
  def stop_all(state, from, request) do
    case state.asking.stop_all do
      [] -> ask_next(put_in(state.asking.stop_all, [{from, request}]))
      under_way -> put_in(state.asking.stop_all, under_way ++ [{from, request}])
    end
  end

  defp ask_next(state) do
    with [{_from, request} | _later] <- state.asking.stop_all do
      Wire.command(state.port, request)
      asked = Map.new(state.children, fn {id, child} -> {id, %{child | asked?: true}} end)
      %{state | children: asked}
    else
      [] -> state
    end
  end

  defp tree_gone(killed, []), do: {:tree_gone, killed}
  defp tree_gone(_killed, survivors), do: {:survivors, survivors}

  defp gone(_operation, [], answer), do: answer

  defp gone(operation, survivors, _answer) do
    {:error, %Error{operation: operation, reason: :survivors, os_pids: survivors}}
  end
end
