defmodule Snakepit.Python.Sessions do
  @moduledoc false

  # Knows who owns the sessions of Python pools, and tells their workers when an owner is gone: then Python forgets what
  # it kept for it.

  use GenServer

  alias Snakepit.{Pool, ProcessLabel}
  alias Snakepit.Python.{Protocol, Runtime, Session}

  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "The calling process owns this session from now on."
  @spec enter(Session.t()) :: :ok
  def enter(session), do: GenServer.call(__MODULE__, {:enter, session, self()}, :infinity)

  @doc "Ends a session."
  @spec leave(Session.t()) :: :ok
  def leave(session), do: GenServer.call(__MODULE__, {:leave, session}, :infinity)

  @impl true
  def init([]) do
    ProcessLabel.set(__MODULE__)
    {:ok, %{owners: %{}, sessions: %{}}}
  end

  @impl true
  def handle_call({:enter, session, owner}, _from, state) do
    monitor = Process.monitor(owner)
    owners = Map.put(state.owners, monitor, session)
    {:reply, :ok, %{owners: owners, sessions: Map.put(state.sessions, session.key, monitor)}}
  end

  def handle_call({:leave, session}, _from, state) do
    {monitor, sessions} = Map.pop(state.sessions, session.key)
    if monitor, do: Process.demonitor(monitor, [:flush])
    if monitor, do: drop(session)
    {:reply, :ok, %{owners: Map.delete(state.owners, monitor), sessions: sessions}}
  end

  @impl true
  def handle_info({:DOWN, monitor, :process, _owner, _reason}, state) do
    {session, owners} = Map.pop(state.owners, monitor)
    if session, do: drop(session)
    sessions = if session, do: Map.delete(state.sessions, session.key), else: state.sessions
    {:noreply, %{owners: owners, sessions: sessions}}
  end

  # The pool may be busy, or gone. A worker that is busy reads it before its next request.
  defp drop(session) do
    Runtime.task(fn _self ->
      for worker <- workers(session.pool), worker, do: Protocol.drop(worker, session.key)
    end)
  end

  defp workers(pool) do
    for %{pid: worker} <- Pool.list_workers(pool), do: worker
  catch
    :exit, _gone -> []
  end
end
