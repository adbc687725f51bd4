defmodule Snakepit.Test.Exhaustion do
  @moduledoc """
  For second BEAMs that, or whose guardian, may have no more processes or descriptors.
  """

  alias Snakepit.{Command, Guardian, Worker}

  # What runs here has nothing to do with limits.
  @most 500

  @doc """
  Runs programs until one attempt fails. Returns that failure, and how many run by then. What failed gives back what it
  had taken, so there may be room for some more before the next failure.
  """
  def exhaust do
    {failure, children} = exhaust(running())
    Process.put(:children, children)
    {failure, length(children)}
  end

  defp exhaust(children) do
    case attempt() do
      {:ok, child} when length(children) < @most -> exhaust([child | children])
      failure -> {failure, children}
    end
  end

  @doc "Runs a program. Returns the child, or the step that failed and why."
  def attempt do
    with {:ok, child} <- Guardian.spawn(Command.new!(cmd: ["sleep", "600"])),
         :ok <- Guardian.release(child) do
      {:ok, child}
    else
      {:error, error} -> {error.step, error.reason}
    end
  end

  @doc "Returns the children that `exhaust/0` has made."
  def running, do: Process.get(:children, [])

  @doc "Ends all of them at once. Returns the answers that are no `:ok`."
  def stop_all do
    running()
    |> Enum.map(&Task.async(fn -> Guardian.stop(&1) end))
    |> Task.await_many(20_000)
    |> Enum.reject(&(&1 == :ok))
  end

  @doc "Starts a worker that nobody is linked to. Returns a monitor of it."
  def start_worker(options) do
    {:ok, worker} = Worker.start_link(options)
    Process.unlink(worker)
    Process.monitor(worker)
  end

  @doc "Waits for the end of a worker. Returns its reason."
  def await_down(monitor), do: receive(do: ({:DOWN, ^monitor, :process, _pid, reason} -> reason))

  @doc "Starts and stops a worker with standard streams both ways and a lifeline. Returns `:ok`, or what failed."
  def connect do
    Process.flag(:trap_exit, true)
    options = [cmd: ["cat"], stdio: :pipe, packet: :line, heartbeat: true]

    case Worker.start_link(options) do
      {:ok, worker} ->
        {:ok, "x\n"} = Worker.request(worker, "x\n")
        Worker.stop(worker)

      {:error, error} ->
        {error.operation, error.reason}
    end
  end

  @doc "Loads all code, for which descriptors are needed too."
  def load do
    for application <- [:kernel, :stdlib, :elixir, :logger, :snakepit] do
      {:ok, modules} = :application.get_key(application, :modules)
      Enum.each(modules, &Code.ensure_loaded/1)
    end

    :ok
  end
end
