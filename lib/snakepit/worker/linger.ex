defmodule Snakepit.Worker.Linger do
  @moduledoc false

  # A worker whose process has ended, and whose output somebody has still to read. Everything else that it had is gone,
  # so nothing is left if it is killed. It exits when all has been read, or nobody has read for its `:linger`.

  alias Snakepit.Error
  alias Snakepit.Worker.{Exit, Output, Talk}

  @doc "Whether there is anything to wait for."
  def worth?(worker), do: worker.options.linger > 0 and Output.unread?(worker.output)

  @doc "Ends what the worker has but its output. It exits with `reason` later."
  def begin(worker, reason) do
    Process.demonitor(worker.guardian, [:flush])
    # Order: drained, and so those who waited have what there was.
    case Exit.run(worker, :graceful, reason) do
      {:ok, worker} -> go_on(%{worker | lingers: {reason, timer(worker)}})
      {_error, worker} -> {:stop, reason, worker}
    end
  end

  defp timer(worker), do: :erlang.start_timer(worker.options.linger, self(), :linger)

  # The time is counted anew from the last who asked.
  defp stay(%{lingers: {reason, timer}} = worker, output) do
    :erlang.cancel_timer(timer)
    go_on(%{worker | output: output, lingers: {reason, timer(worker)}})
  end

  defp go_on(%{lingers: {reason, _timer}} = worker) do
    if Output.unread?(worker.output), do: {:noreply, worker}, else: {:stop, reason, worker}
  end

  @doc "Answers as `GenServer.handle_call/3`."
  def call({:talk, request, deadline}, from, worker)
      when elem(request, 0) in [:read, :activate] do
    # Whatever is wrong with its output, it ends anyway.
    case Talk.call(request, from, deadline, worker.output) do
      {:ok, output} -> stay(worker, output)
      {:fault, _reason, output} -> stay(worker, output)
    end
  end

  def call({:stop, _opts}, _from, worker), do: {:stop, :normal, :ok, worker}

  def call(_of_a_process, _from, worker) do
    {reason, _timer} = worker.lingers
    error = %{Error.from_exit(reason) | operation: :worker}
    detail = "its process has ended, and only its output can be read: #{Error.cause(error)}"
    {:reply, {:error, %{error | reason: :worker_down, detail: detail}}, worker}
  end

  @doc "Answers as `GenServer.handle_info/2`."
  def info({:timeout, timer, :linger}, %{lingers: {reason, timer}} = worker),
    do: {:stop, reason, worker}

  def info({:EXIT, _pid, reason}, worker) when reason not in [:normal, :heartbeat_timeout],
    do: {:stop, reason, worker}

  def info(_of_the_process, worker), do: {:noreply, worker}
end
