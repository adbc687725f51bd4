defmodule Snakepit.Worker.StopCommand do
  @moduledoc false

  # A command that asks a worker's process to end, instead of a signal: `nginx -s quit`, `redis-cli shutdown`.
  #
  # It runs with the environment, user and directory of the worker's process, in a BEAM process of its own, so that a
  # worker that is told early that its application stops can go on. The worker keeps the time. If the command fails, it
  # is told so, and its process gets the stop signal instead.
  #
  # The guardian knows nothing of it. When the BEAM is gone, it sends the stop signal.

  require Logger

  alias Snakepit.{Error, Guardian}
  alias Snakepit.Output.Tail

  @enforce_keys [:deadline]
  defstruct [:deadline, failed?: false]

  @typedoc """
  A command that was begun. The process has until the deadline, a monotonic time, to end. `failed?` once it has to get
  its stop signal.
  """
  @type t :: %__MODULE__{deadline: integer(), failed?: boolean()}

  @inherited [:clear_env, :cd, :umask, :user, :group, :groups]

  @doc "Runs the command of a worker with these options. If it fails the caller gets `{Snakepit.Worker.StopCommand, :failed}`."
  @spec begin(Snakepit.Worker.Options.t(), Guardian.child()) :: t()
  def begin(options, child) do
    worker = self()
    spawn(fn -> ask(options, child, worker) end)
    %__MODULE__{deadline: now() + options.stop_timeout}
  end

  @doc "Gives the process so much time from now on, if it has less."
  @spec extend(t(), non_neg_integer()) :: t()
  def extend(asking, timeout_ms),
    do: %{asking | deadline: max(asking.deadline, now() + timeout_ms)}

  @doc "Returns how many milliseconds the process still has."
  @spec left(t()) :: non_neg_integer()
  def left(%__MODULE__{deadline: deadline}), do: max(deadline - now(), 0)

  defp ask(options, child, worker) do
    [program | args] = options.stop_command

    with {:failed, why, output} <-
           outcome(Snakepit.run(program, args, run_options(options, child))) do
      # Snakepit itself stops, and starts nothing any more.
      unless why == :shutting_down, do: warn(options, child, why, output)
      send(worker, {__MODULE__, :failed})
    end
  end

  defp outcome({:ok, %{status: 0}}), do: :ok

  defp outcome({:ok, %{status: nil, signal: signal, stderr: stderr}}),
    do: {:failed, "was ended by #{signal}", stderr}

  defp outcome({:ok, %{status: status, stderr: stderr}}),
    do: {:failed, "ended with status #{status}", stderr}

  defp outcome({:error, %Error{reason: :shutting_down}}), do: {:failed, :shutting_down, ""}
  defp outcome({:error, error}), do: {:failed, "failed: #{Error.cause(error)}", ""}

  defp run_options(options, child) do
    inherited = options.command |> Map.from_struct() |> Map.take(@inherited)
    env = Enum.to_list(options.command.env) ++ [{"MAINPID", "#{child.os_pid}"}]
    given = for {key, value} <- inherited, value != nil, do: {key, value}
    # One that hangs is of no use when the process has had its time.
    [env: env, timeout: options.stop_timeout, stop_timeout: 0] ++ given
  end

  defp warn(options, child, why, output) do
    said = if output == "", do: "", else: "; its last output:\n" <> Tail.text(output)

    Logger.warning(
      "Snakepit worker #{options.id} (OS process #{child.os_pid}): its :stop_command " <>
        "#{inspect(options.stop_command)} #{why}; it gets its stop signal instead#{said}"
    )
  end

  defp now, do: System.monotonic_time(:millisecond)
end
