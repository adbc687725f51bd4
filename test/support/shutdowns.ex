defmodule Snakepit.Test.Shutdowns do
  @moduledoc """
  For second BEAMs whose Snakepit is stopped, or whose workers are ended.
  """

  alias Snakepit.Worker

  @doc "Stops the application. Returns how many milliseconds that took."
  def timed_stop do
    {microseconds, :ok} = :timer.tc(Application, :stop, [:snakepit])
    div(microseconds, 1_000)
  end

  @doc "Begins to stop the application, see `await_stop/0`."
  def begin_stop do
    Process.put(:stop, Task.async(Application, :stop, [:snakepit]))
    :ok
  end

  @doc "Waits for the stop that `begin_stop/0` has begun."
  def await_stop, do: Task.await(Process.get(:stop), 30_000)

  @doc "Starts a worker while the application stops. Returns the reason of the failure, and the state of the run."
  def start_late(cmd) do
    Process.flag(:trap_exit, true)
    {:error, error} = Worker.start_link(cmd: cmd)
    {error.reason, Snakepit.RunState.current()}
  end

  @doc "Starts a worker when the application has stopped. Returns how long that took, and what it raised."
  def start_too_late(cmd) do
    :timer.tc(fn ->
      {:error, {error, _stack}} = Worker.start_link(cmd: cmd)
      Exception.message(error)
    end)
  end

  @doc "Starts workers below no supervisor, which would start them again. Returns monitors of them."
  def start(count, options) do
    for _ <- 1..count do
      {:ok, worker} = Worker.start_link(options)
      Process.unlink(worker)
      Process.monitor(worker)
    end
  end

  @doc "Calls a function that ends workers, and returns when they are down."
  def end_by({module, function, arguments}, monitors) do
    answer = apply(module, function, arguments)
    for monitor <- monitors, do: await_down(monitor)
    answer
  end

  @doc "Starts a worker whose program waits for the end of its input and then ends by itself."
  def end_by_itself(status) do
    {:ok, worker} = Worker.start_link(cmd: ["sh", "-c", "read _; exit #{status}"], stdio: :pipe)
    Process.unlink(worker)
    monitor = Process.monitor(worker)
    :ok = Worker.close_input(worker)
    await_down(monitor)
  end

  defp await_down(monitor), do: receive(do: ({:DOWN, ^monitor, :process, _pid, reason} -> reason))
end
