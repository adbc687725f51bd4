defmodule Snakepit.Script do
  @moduledoc false

  # `Snakepit.run_as_script/2`.

  @doc false
  @spec run((() -> result), keyword()) :: result when result: term()
  def run(fun, opts) when is_function(fun, 0) do
    opts = Keyword.validate!(opts, [:shutdown_timeout, timeout: :infinity, halt: false])
    check!(opts)
    {:ok, started} = Application.ensure_all_started(:snakepit)
    outcome = attempt(fun, opts[:timeout])
    cleaned = Snakepit.cleanup(shutdown_timeout(opts))
    if :snakepit in started, do: stop_quietly()
    if opts[:halt], do: halt(outcome, cleaned)
    with {:error, error} <- cleaned, do: raise(error)
    conclude(outcome)
  end

  def run(other, _opts) do
    raise ArgumentError, "expected a function without arguments, got: #{inspect(other)}"
  end

  defp check!(opts) do
    for key <- [:timeout, :shutdown_timeout],
        value = opts[key],
        not (value == :infinity and key == :timeout),
        not (is_integer(value) and value >= 0) do
      raise ArgumentError,
            "expected #{inspect(key)} to be an integer of 0 or more, got: #{inspect(value)}"
    end

    unless is_boolean(opts[:halt]) do
      raise ArgumentError, "expected :halt to be true or false, got: #{inspect(opts[:halt])}"
    end
  end

  defp shutdown_timeout(opts) do
    if opts[:shutdown_timeout], do: [timeout_ms: opts[:shutdown_timeout]], else: []
  end

  # Whoever did not start it does not want to read that it has stopped.
  defp stop_quietly do
    Logger.put_module_level(:application_controller, :warning)
    Application.stop(:snakepit)
    Logger.delete_module_level(:application_controller)
  end

  # In the caller, where its messages, links and dictionary are, unless it has to be interrupted.
  defp attempt(fun, :infinity) do
    {:ok, fun.()}
  catch
    kind, reason -> {:failed, kind, reason, __STACKTRACE__}
  end

  defp attempt(fun, timeout) do
    {pid, monitor} =
      spawn_monitor(fn -> exit({:shutdown, {__MODULE__, attempt(fun, :infinity)}}) end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, {:shutdown, {__MODULE__, outcome}}} -> outcome
      {:DOWN, ^monitor, :process, ^pid, reason} -> {:failed, :exit, reason, []}
    after
      timeout ->
        Process.exit(pid, :kill)
        Process.demonitor(monitor, [:flush])
        {:failed, :exit, :timeout, []}
    end
  end

  defp conclude({:ok, result}), do: result
  defp conclude({:failed, kind, reason, stacktrace}), do: :erlang.raise(kind, reason, stacktrace)

  # In good order: an application that is stopped closes its record, one that is halted does not.
  defp halt(outcome, cleaned) do
    with {:failed, kind, reason, stacktrace} <- outcome,
         do: IO.puts(:stderr, Exception.format(kind, reason, stacktrace))

    with {:error, error} <- cleaned, do: IO.puts(:stderr, Exception.message(error))
    System.stop(if match?({{:ok, _}, {:ok, _}}, {outcome, cleaned}), do: 0, else: 1)
    Process.sleep(:infinity)
  end
end
