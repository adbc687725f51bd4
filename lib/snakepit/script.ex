defmodule Snakepit.Script do
  @moduledoc false

  # The implementation of `Snakepit.run_as_script/2`.

  alias Snakepit.Options

  @schema [
    timeout: [
      type: :timeout,
      default: :infinity,
      doc:
        "how many milliseconds `fun` may take; it is killed then, and this exits with `:timeout`"
    ],
    shutdown_timeout: [
      type: :milliseconds,
      default: nil,
      shown: "as for `cleanup/1`",
      doc: "how many milliseconds processes may take to end, whatever their own `:stop_timeout`"
    ],
    halt: [
      type: :boolean,
      default: false,
      doc: "`true` to stop the BEAM in good order afterwards, with status 0, or 1 if `fun` failed"
    ]
  ]

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  @spec run((() -> result), keyword()) :: result when result: term()
  def run(fun, opts) do
    Options.check!(fun, {:function, [0]})
    opts = Options.validate!(opts, @schema)
    {:ok, started} = Application.ensure_all_started(:snakepit)
    outcome = attempt(fun, opts.timeout)
    cleaned = Snakepit.cleanup(timeout: opts.shutdown_timeout)
    if :snakepit in started, do: stop_quietly()
    if opts.halt, do: halt(outcome, cleaned)
    with {:error, error} <- cleaned, do: raise(error)
    conclude(outcome)
  end

  # A script that has not started the application should not log that it has stopped.
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
