defmodule Snakepit.Worker.News do
  @moduledoc false

  # Reports on a worker, as log lines and as events of `Snakepit.Telemetry`.

  require Logger

  alias Snakepit.{Error, RunState, Telemetry}
  alias Snakepit.Worker.Exit
  alias Snakepit.Output.Tail

  @doc "Reports that a worker's process runs and is ready."
  def started(worker) do
    Telemetry.execute(
      [:snakepit, :process, :started],
      %{count: 1, startup_duration_ms: now() - worker.started_at},
      %{
        worker_id: worker.options.id,
        os_pid: worker.child.os_pid,
        beam_pid: String.to_integer(System.pid())
      }
    )
  end

  @doc "Reports that a worker's process could not be started, or did not become ready."
  def not_started(options, error) do
    # An application that stops starts nothing, and that is no failure.
    level =
      if RunState.current() == :running and error.reason != :shutting_down,
        do: :error,
        else: :debug

    process = if error.os_pid, do: " (OS process #{error.os_pid})", else: ""

    Logger.log(
      level,
      fn -> "Snakepit worker #{options.id}#{process} did not start: #{Error.cause(error)}" end
    )
  end

  @doc "Reports that a worker's process was lost with the guardian, and that another is ready in its place."
  def restarted(worker, lost, duration_ms) do
    Logger.warning(
      "Snakepit worker #{worker.options.id} has lost its OS process #{lost.child.os_pid} with the " <>
        "guardian, and runs again as #{worker.child.os_pid} after #{duration_ms} ms"
    )

    Telemetry.execute(
      [:snakepit, :process, :restarted],
      %{count: 1, duration_ms: duration_ms},
      %{
        worker_id: worker.options.id,
        os_pid: worker.child.os_pid,
        previous_os_pid: lost.child.os_pid,
        reason: :guardian_down
      }
    )
  end

  @doc "Reports that a worker's process was lost with the guardian, and cannot be started again."
  def not_restarted(worker, error) do
    Logger.error(
      "Snakepit worker #{worker.options.id} has lost its OS process #{worker.child.os_pid} with the " <>
        "guardian and cannot start it again: #{Exception.message(error)}"
    )
  end

  @doc "Reports that a worker's process is gone, with everything that it had started."
  def ended(worker, reason, tail) do
    exit = with {exit, _tail} <- worker.exit, do: exit
    uptime = System.monotonic_time(:millisecond) - worker.started_at

    Telemetry.execute(
      [:snakepit, :process, :terminated],
      Map.merge(%{count: 1, uptime_ms: uptime}, used(exit)),
      %{
        worker_id: worker.options.id,
        os_pid: worker.child.os_pid,
        exit_code: exit && exit.status,
        exit_signal: exit && exit.signal,
        reason: reason,
        output_tail: tail
      }
    )

    message = fn ->
      what = describe(worker.exit, reason)
      said = if tail == "", do: "", else: "; its last output:\n" <> Tail.text(tail)

      "Snakepit worker #{worker.options.id} (OS process #{worker.child.os_pid}) " <>
        "#{what} after #{uptime} ms#{left_behind(worker)}#{advice(worker, reason)}#{said}"
    end

    cond do
      # The application stops, and ends everything.
      RunState.current() != :running -> Logger.debug(message)
      # `Snakepit.cleanup/1`, which is no failure of this one.
      match?({%{asked: true}, _tail}, worker.exit) -> Logger.debug(message)
      not Exit.orderly?(reason) -> Logger.error(message)
      # A supervisor that starts it again and again does not say why.
      reason == :normal and worker.left > 0 -> Logger.warning(message)
      worker.tree_gone? -> Logger.debug(message)
      # An expected exit: no log.
      true -> :ok
    end
  end

  # Of a process that nobody could wait for, nothing is known.
  defp used(nil), do: %{}
  defp used(exit), do: Map.take(exit, [:user_us, :system_us, :max_rss_kb])

  @doc "Describes what a process that ended by itself had left behind, after a description of its end."
  @spec left_behind(%{left: non_neg_integer()}) :: String.t()
  def left_behind(%{left: 0}), do: ""
  def left_behind(%{left: 1}), do: "; it left a process behind, which was killed"
  def left_behind(%{left: left}), do: "; it left #{left} processes behind, which were killed"

  # Of one that has ended without leaving anything behind this cannot be told: it may have done its work.
  defp advice(%{left: left}, :normal) when left > 0, do: "; #{foreground()}"
  defp advice(_worker, _reason), do: ""

  @doc "Says what is wrong with a program that moves to the background."
  def foreground, do: "a worker's program must stay in the foreground"

  @doc "Returns whether `ended/3` has logged all that is known of the end of a worker."
  def told?({kind, _}) when kind in [:exit_status, :exit_signal, :survivors], do: true

  def told?(reason)
      when reason in [
             :heartbeat_timeout,
             :guardian_down,
             :max_packet,
             :unexpected_output,
             :unanswered
           ],
      do: true

  def told?(%Error{}), do: true
  def told?(_reason), do: false

  @doc "Describes how a process ended, for people."
  def describe(_exit, :heartbeat_timeout), do: "gave no heartbeats and was ended"
  def describe(_exit, :guardian_down), do: "was lost with the guardian"

  def describe(_exit, :max_packet),
    do: "wrote a line or packet longer than its :max_packet and was ended"

  def describe(_exit, :unexpected_output),
    do: "wrote a packet that answers no request and was ended; set :output if it may do that"

  def describe(_exit, :unanswered),
    do: "did not answer a request within its :answer_timeout and was ended"

  def describe(_exit, {:survivors, os_pids}),
    do: "cannot be ended; still there are #{Error.pids(os_pids)}"

  def describe({%{signal: signal}, _tail}, _reason) when signal != nil,
    do: "was ended by #{signal}"

  def describe({%{status: status}, _tail}, _reason), do: "ended with status #{status}"
  def describe(nil, {:shutdown, %Error{detail: detail}}), do: "ended: #{detail}"
  def describe(nil, reason), do: "ended: #{inspect(reason)}"

  @doc "Reports that a worker has cleaned up after its process."
  def cleaned_up(worker, method, answer, begun) do
    with {:error, error} <- answer do
      Logger.error("Snakepit worker #{worker.options.id}: #{Exception.message(error)}")
    end

    Telemetry.execute(
      [:snakepit, :process, :cleanup_completed],
      %{count: 1, cleanup_duration_ms: System.monotonic_time(:millisecond) - begun},
      %{worker_id: worker.options.id, cleanup_method: method, success: answer == :ok}
    )
  end

  defp now, do: System.monotonic_time(:millisecond)
end
