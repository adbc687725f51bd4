defmodule Snakepit.Test.Workers do
  @moduledoc """
  Registered workers, made in the four steps of the gate. For whichever BEAM calls it: second ones have
  this module too.
  """

  alias Snakepit.{Command, Guardian}
  alias Snakepit.Pool.ProcessRegistry

  @doc """
  Starts a worker below an owner that lives on. Gives the child, with the owner in it, or the reason of
  the failure.
  """
  def start(id, cmd, options \\ []) do
    asker = self()
    owner = spawn(fn -> own(asker, id, cmd, options) end)
    monitor = Process.monitor(owner)

    receive do
      {^owner, answer} ->
        Process.demonitor(monitor, [:flush])
        answer

      {:DOWN, ^monitor, :process, ^owner, reason} ->
        {:error, reason}
    end
  end

  @doc "As `start/3`, for many at once. Gives their OS pids."
  def start_all(ids, cmd, options \\ []) do
    ids
    |> Enum.map(&Task.async(fn -> start(&1, cmd, options) end))
    |> Task.await_many(60_000)
    |> Enum.map(fn {:ok, child} -> child.os_pid end)
  end

  @doc "Ends a worker and waits until it is forgotten."
  def stop(%{owner: owner}) do
    monitor = Process.monitor(owner)
    send(owner, :stop)

    receive do
      {:DOWN, ^monitor, :process, ^owner, reason} -> reason
    end
  end

  @doc "The four steps, for the caller to own."
  def launch(id, cmd, options \\ []) do
    command = Command.new!([cmd: cmd] ++ options)

    with :ok <- ProcessRegistry.reserve_worker(id),
         {:ok, child} <- Guardian.spawn(command, worker_id: id),
         :ok <-
           ProcessRegistry.activate_worker(id, self(), child.os_pid, identity: child.identity),
         :ok <- Guardian.release(child) do
      {:ok, child}
    end
  end

  @doc "The end of a worker of the caller's own."
  def finish(id, child) do
    with :ok <- Guardian.stop(child, timeout: 50), do: ProcessRegistry.unregister_worker(id)
  end

  @doc """
  So many owners start a worker and end it, again and again. Calls `fun` when this many steps have been
  taken. Does not return.
  """
  def storm(count, steps, cmd, fun) do
    taken = :atomics.new(1, [])

    step = fn ->
      # In one go: of two that add before either reads, neither would see its own number.
      if :atomics.add_get(taken, 1, 1) == steps, do: fun.()
      :ok
    end

    for number <- 1..count, do: spawn(fn -> storm_worker("w#{number}", cmd, step) end)
    Process.sleep(:infinity)
  end

  defp storm_worker(id, cmd, step) do
    with {:ok, child} <- launch(id, cmd), :ok <- step.(), :ok <- finish(id, child), do: step.()
    storm_worker(id, cmd, step)
  end

  defp own(asker, id, cmd, options) do
    case launch(id, cmd, options) do
      {:ok, child} ->
        send(asker, {self(), {:ok, Map.put(child, :owner, self())}})
        live(id, child)

      {:error, error} ->
        send(asker, {self(), {:error, error}})
    end
  end

  defp live(id, child) do
    receive do
      :stop -> :ok = finish(id, child)
    end
  end
end
