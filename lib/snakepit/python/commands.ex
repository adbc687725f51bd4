defmodule Snakepit.Python.Commands do
  @moduledoc false

  # `Snakepit.execute/3` and `Snakepit.execute_stream/4` with a pool of `Snakepit.Python`. A command is a function of
  # Python, named as for `Snakepit.Python.call/4`, and its arguments are keyword arguments.

  @behaviour Snakepit.Adapter

  alias Snakepit.{Error, Python}

  @impl true
  def worker_options(opts), do: opts

  @impl true
  def run_command(pool, command, arguments, opts) do
    with {:error, error} <- Python.call(pool, command, [], call(arguments, opts)),
         do: {:error, failure(:execute, command, error)}
  end

  @impl true
  def stream_command(pool, command, arguments, fun, opts) do
    mine = make_ref()
    stream = Python.stream(pool, command, [], call(arguments, opts))

    try do
      Enum.each(stream, &pass_on(&1, fun, opts.deadline, mine))
    rescue
      error in [Error, Python.Error] -> {:error, failure(:execute_stream, command, error)}
    catch
      {^mine, kind, reason, stacktrace} -> :erlang.raise(kind, reason, stacktrace)
    end
  end

  # The time is that of all parts together. What the caller's function raises is none of ours.
  defp pass_on(part, fun, deadline, mine) do
    if left(deadline) == 0,
      do: raise(%Error{operation: :execute_stream, reason: :timeout, detail: "it took too long"})

    try do
      fun.(part)
    catch
      kind, reason -> throw({mine, kind, reason, __STACKTRACE__})
    end
  end

  defp call(arguments, opts) do
    [
      kwargs: arguments,
      timeout: left(opts.deadline),
      key: opts.session_id,
      affinity: opts.affinity
    ]
  end

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - System.monotonic_time(:millisecond), 0)

  # In the same words as of a gRPC worker.
  defp failure(operation, command, %Python.Error{} = error) do
    traceback = if error.traceback in [nil, ""], do: "", else: "\n" <> error.traceback

    detail =
      "#{inspect(command)} raised #{Exception.message(error)}#{String.trim_trailing(traceback)}"

    %Error{operation: operation, reason: :exception, detail: detail}
  end

  defp failure(operation, _command, %Error{} = error), do: %{error | operation: operation}
end
