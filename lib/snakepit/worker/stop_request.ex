defmodule Snakepit.Worker.StopRequest do
  @moduledoc false

  # Asks a worker's process to end: by its stop signal, or by its `:stop_command`, after which the worker keeps the
  # time. What comes when the time is up is the abort signal, if it has one, and SIGKILL.

  alias Snakepit.Guardian
  alias Snakepit.Worker.{Notify, StopCommand}

  @doc "Asks the process to end, without waiting for that."
  def begin(%{options: %{stop_command: nil} = options} = worker) do
    Guardian.begin_stop(worker.child, options.stop_signal, options.stop_timeout)
    worker
  end

  def begin(%{asking: nil, exit: nil} = worker) do
    asking = StopCommand.begin(worker.options, worker.child)
    Process.send_after(self(), {StopCommand, :look}, StopCommand.left(asking))
    %{worker | asking: asking}
  end

  def begin(worker), do: worker

  @doc "The command that was begun has failed, or it is time to look whether the process has ended."
  def hear(%{asking: asking} = worker, :failed) do
    Guardian.begin_stop(worker.child, worker.options.stop_signal, StopCommand.left(asking))
    %{worker | asking: %{asking | failed?: true}}
  end

  def hear(%{exit: exit, asking: asking} = worker, :look)
      when exit != nil or asking.failed?,
      do: worker

  def hear(%{asking: asking} = worker, :look) do
    case StopCommand.left(asking) do
      0 ->
        {signal, timeout} = last(worker)
        Guardian.begin_stop(worker.child, signal, timeout)

      # It was given more.
      left ->
        Process.send_after(self(), {StopCommand, :look}, left)
    end

    worker
  end

  @doc "Gives a process that a command has asked to end so much time from now on, if it has less."
  def extend(%{asking: nil} = worker, _timeout_ms), do: worker

  def extend(%{asking: asking} = worker, timeout_ms),
    do: %{worker | asking: StopCommand.extend(asking, timeout_ms)}

  @doc """
  Runs the command, if it was not begun. Returns when the process is gone with its tree, has had its time, or is to get
  a signal instead.
  """
  def await(%{options: %{stop_command: nil}} = worker), do: worker

  def await(worker) do
    worker = begin(worker)
    if worker.asking, do: await_end(worker), else: worker
  end

  defp await_end(%{tree_gone?: true} = worker), do: worker
  defp await_end(%{survivors: [_ | _]} = worker), do: worker
  defp await_end(%{asking: %{failed?: true}} = worker), do: worker

  defp await_end(%{child: %{id: id}, guardian: guardian, notify: notify} = worker) do
    receive do
      {Guardian, ^id, {:exited, exit, tail}} ->
        await_end(%{worker | exit: {exit, tail}})

      {Guardian, ^id, {:tree_gone, _killed}} ->
        %{worker | tree_gone?: true}

      {Guardian, ^id, {:survivors, os_pids}} ->
        %{worker | survivors: os_pids}

      {Guardian, ^id, :guardian_down} ->
        worker

      {:DOWN, ^guardian, :process, _server, _reason} ->
        worker

      {StopCommand, :failed} ->
        %{worker | asking: %{worker.asking | failed?: true}}

      {Notify, ^notify, {:extend, timeout_ms}} ->
        await_end(extend(worker, timeout_ms))
    after
      StopCommand.left(worker.asking) -> worker
    end
  end

  @doc "Returns the signal that ends the process, `how` it is ended, and how many milliseconds it has then."
  def final(%{asking: %StopCommand{failed?: true} = asking} = worker, :graceful),
    do: {worker.options.stop_signal, StopCommand.left(asking)}

  # The command has asked, and the time is up.
  def final(%{asking: %StopCommand{}} = worker, :graceful), do: last(worker)

  def final(%{options: options}, :graceful), do: {options.stop_signal, options.stop_timeout}
  def final(worker, :aborted), do: last(worker)
  def final(_worker, :forced), do: {:sigkill, 0}

  defp last(%{options: %{command: %{abort_signal: nil}}}), do: {:sigkill, 0}
  defp last(%{options: %{command: command}}), do: {command.abort_signal, command.abort_timeout}
end
