defmodule Snakepit.Worker.Exit do
  @moduledoc false

  # The end of a worker: ends its tree, closes its connections, and removes its entry from the registry.

  alias Snakepit.{Error, Guardian, Telemetry}
  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.Worker.{Client, News, Notify, Output, StopRequest}
  alias Snakepit.Launch

  # What is in a connection whose other side is gone arrives at once.
  @drain_ms 1_000

  @doc """
  Ends everything that a worker has: returns it without any of it but output that has been read and not been taken,
  and whether all of it is gone.

  `how` is what `how/2` returns; it makes no difference for a process that has ended by itself.
  """
  def run(worker, how, reason) do
    metadata = %{worker_id: worker.options.id, os_pid: worker.child.os_pid, reason: reason}

    Telemetry.span([:snakepit, :shutdown], metadata, fn ->
      {answer, method, worker} = end_all(worker, how, reason)
      error = with {:error, error} <- answer, do: %{error: error}, else: (:ok -> %{})
      {{answer, worker}, Map.put(error, :method, method)}
    end)
  end

  defp end_all(worker, how, reason) do
    begun = System.monotonic_time(:millisecond)
    %{ended: {answer, method}} = worker = end_process(worker, how)
    tail = tail(worker)
    output = Output.close(worker.output, News.describe(worker.exit, reason))
    stop_linked(worker.monitor)
    stop_linked(worker.notify)
    Client.stop(worker.client)
    answer = forget(worker, answer)
    News.ended(worker, reason, tail)
    News.cleaned_up(worker, method, answer, begun)

    {answer, method,
     %{worker | child: nil, output: output, monitor: nil, notify: nil, client: nil}}
  end

  @doc """
  Lets go of everything that a worker had whose process was lost with the guardian, so that it can have
  another. Those who wait for an answer of the process get an error.
  """
  def let_go(worker) do
    Process.demonitor(worker.guardian, [:flush])
    worker = end_process(worker, :forced)
    Output.close(worker.output, News.describe(nil, :guardian_down))
    stop_linked(worker.monitor)
    stop_linked(worker.notify)
    Client.stop(worker.client)
    # If the registry is being started again too, the next start takes over the entry.
    Launch.forget(worker.options.id, worker.child)
  end

  defp forget(worker, :ok), do: Launch.forget(worker.options.id, worker.child)

  # Without waiting for it. If its leader is still there the entry stays, and the auditor comes by.
  defp forget(worker, error) do
    ProcessRegistry.unregister_worker(worker.options.id)
    error
  end

  @doc "Ends the tree, and has the rest of its output; everything else is still there."
  def end_process(%{ended: nil} = worker, how) do
    Notify.ending(worker.notify)
    worker = if how == :graceful, do: StopRequest.await(worker), else: worker
    ended = end_tree(worker, how)
    # Those of a process that was asked to end were not left behind.
    worker = if worker.exit, do: note_left(worker), else: note_exit(worker)
    %{worker | ended: ended, output: Output.drain(worker.output, @drain_ms)}
  end

  def end_process(worker, _how), do: worker

  defp tail(%{exit: nil, output: output}), do: Output.tail(output, "")
  defp tail(%{exit: {_exit, kept}, output: output}), do: Output.tail(output, kept)

  @doc "Returns the reason with which a worker exits when its process has ended by itself."
  def reason(%{signal: signal}) when signal != nil, do: {:exit_signal, signal}
  def reason(%{status: 0}), do: :normal
  def reason(%{status: status}), do: {:exit_status, status}

  @doc "Returns the error of a worker that did not become ready, with the end of its output. Its process has been ended."
  def not_ready(worker, why) do
    why = with {:exited, exit, _tail} <- why, do: reason(exit)
    {reason, detail} = explain(why, worker.options.ready_timeout)
    {status, signal} = ended_with(why)

    %Error{
      operation: :start,
      reason: reason,
      status: status,
      signal: signal,
      worker_id: worker.options.id,
      os_pid: worker.child.os_pid,
      detail: detail && detail <> News.left_behind(worker) <> advice(status),
      output: tail(worker)
    }
  end

  defp advice(0), do: "; #{News.foreground()}"
  defp advice(_status), do: ""

  defp ended_with(:normal), do: {0, nil}
  defp ended_with({:exit_status, status}), do: {status, nil}
  defp ended_with({:exit_signal, signal}), do: {nil, signal}
  defp ended_with(_why), do: {nil, nil}

  defp explain(:normal, _timeout), do: {:exit_status, "ended with status 0 before it was ready"}

  defp explain({:exit_status, status}, _timeout),
    do: {:exit_status, "ended with status #{status} before it was ready"}

  defp explain({:exit_signal, signal}, _timeout),
    do: {:exit_signal, "was ended by #{signal} before it was ready"}

  defp explain(:timeout, timeout), do: {:not_ready, "not ready within #{timeout} ms"}

  defp explain({:timeout, pending}, timeout),
    do: {:not_ready, "not ready within #{timeout} ms: #{pending}"}

  defp explain(:guardian_down, _timeout), do: {:guardian_down, nil}
  defp explain({:parent, reason}, _), do: {:shutting_down, "told to stop: #{inspect(reason)}"}

  defp explain({:monitor, :heartbeat_timeout}, _timeout),
    do: {:not_ready, "gave no heartbeats before it was ready"}

  defp explain({:monitor, reason}, _timeout),
    do: {:not_ready, "its heartbeat monitor ended: #{Exception.format_exit(reason)}"}

  defp explain({:client, reason}, _timeout),
    do: {:not_ready, "its client ended: #{Exception.format_exit(reason)}"}

  defp explain({:fault, reason}, _timeout), do: {:not_ready, News.describe(nil, reason)}

  defp explain({:crashed, reason}, _timeout),
    do: {:not_ready, "the :ready function crashed: #{Exception.format_exit(reason)}"}

  defp end_tree(%{tree_gone?: true}, _how), do: {:ok, :exited}

  # The guardian has tried, and asking it again does not help.
  defp end_tree(%{survivors: [_ | _] = os_pids}, how),
    do: {{:error, %Error{operation: :stop, reason: :survivors, os_pids: os_pids}}, how}

  defp end_tree(worker, how) do
    {signal, timeout} = StopRequest.final(worker, how)

    case Launch.stop(worker.child, signal, timeout) do
      {:error, %Error{reason: :guardian_down}} -> {:ok, :guardian_down}
      answer -> {answer, how}
    end
  end

  # Order: it is in the mailbox before the answer to `stop/2`.
  defp note_exit(%{child: %{id: id}} = worker) do
    receive do
      {Guardian, ^id, {:exited, exit, tail}} -> %{worker | exit: {exit, tail}}
    after
      0 -> worker
    end
  end

  defp note_left(%{tree_gone?: true} = worker), do: worker

  # Order: as above.
  defp note_left(%{child: %{id: id}} = worker) do
    receive do
      {Guardian, ^id, {:tree_gone, killed}} -> %{worker | left: killed}
    after
      0 -> worker
    end
  end

  @doc "Ends a process of the worker's own. Its exit is none of a worker that goes on."
  def stop_linked(nil), do: :ok

  def stop_linked(pid) do
    monitor = Process.monitor(pid)
    Process.unlink(pid)
    Process.exit(pid, :shutdown)
    receive(do: ({:DOWN, ^monitor, :process, ^pid, _reason} -> :ok))

    receive do
      {:EXIT, ^pid, _reason} -> :ok
    after
      0 -> :ok
    end
  end

  @doc "Returns how a worker that exits with this reason ends its process."
  @spec how(map(), term()) :: :graceful | :aborted | :forced
  def how(worker, reason) do
    cond do
      orderly?(reason) -> :graceful
      reason == :heartbeat_timeout and worker.options.command.abort_signal != nil -> :aborted
      true -> :forced
    end
  end

  @doc "Returns whether a worker that exits with this reason was meant to end."
  def orderly?(reason) when reason in [:normal, :shutdown], do: true
  def orderly?({:shutdown, _}), do: true
  def orderly?(_reason), do: false
end
