defmodule Snakepit.Error do
  @moduledoc """
  What went wrong, and with which process.

  `reason` is an atom: the POSIX name where there is one (`:eperm`, `:esrch`), otherwise one of

    * `:refused` - the pid or group can never be a target: no pid at all, pid 1, the BEAM itself, or
      the leader or group of its session
    * `:ambiguous` - there is a process with that pid, and it may be another one than was meant, so
      it was left alone
    * `:survived` - the process was killed and is still there, for example in an uninterruptible
      system call
    * `:survivors` - as above, for the several processes in `os_pids`
    * `:guardian_down` - the helper that runs all processes is gone, and with it the processes; it is
      being started again
    * `:invalid_transition` - a run does not go from that state to the other
    * `:already_registered` - a worker of that id is there already
    * `:exit_status`, `:exit_signal` - the process ended too early, or with a status that means failure
    * `:not_ready` - the process runs, but was not ready in time
    * `:timeout` - it took longer than the caller wanted to wait
    * `:max_output` - there was more output than the caller wanted to have
    * `:worker_down` - the worker ended while it was being used
    * `:shutting_down` - Snakepit is about to stop, and starts nothing any more
    * `:invalid_run_id`, `:not_an_identity` - the value is damaged or was never one

  Where a process could not be started, `step` says what failed on the way: `:fork`, `:stdio`,
  `:execve`, or the option in question. `output` is the end of what the process wrote, where there is
  something to be learned from it.
  """

  alias Snakepit.Worker.Tail

  @type t :: %__MODULE__{
          operation: atom(),
          reason: atom(),
          os_pid: integer() | nil,
          os_pids: [pos_integer()],
          step: atom() | nil,
          detail: String.t() | nil,
          output: binary() | nil
        }

  defexception [:operation, :reason, :os_pid, :step, :detail, :output, os_pids: []]

  @impl true
  def message(%__MODULE__{} = error) do
    subject = if error.os_pid, do: " (OS process #{error.os_pid})", else: ""
    "#{error.operation} failed#{subject}: #{error.detail || describe(error)}#{output(error)}"
  end

  defp output(%{output: output}) when output in [nil, ""], do: ""
  defp output(%{output: output}), do: "; its last output:\n" <> Tail.text(output)

  defp describe(%{reason: :refused, os_pid: os_pid}) when is_integer(os_pid) and os_pid <= 0,
    do: "0 and negative numbers are not pids"

  defp describe(%{reason: :refused}),
    do: "init, the BEAM itself and the leaders of its group and session are never signalled"

  defp describe(%{reason: :ambiguous}),
    do: "it cannot be told whether this is the process that was meant, so it was left alone"

  defp describe(%{reason: :survived}), do: "killed, but still there"
  defp describe(%{reason: :survivors, os_pids: os_pids}), do: "still there: #{pids(os_pids)}"
  defp describe(%{reason: :eperm}), do: "not permitted (eperm)"
  defp describe(%{reason: :esrch}), do: "no such process (esrch)"
  defp describe(%{reason: :not_an_identity}), do: "not an identity that Snakepit made"
  defp describe(%{step: step, reason: reason}) when step != nil, do: "#{step}: #{reason}"
  defp describe(%{reason: reason}), do: to_string(reason)

  # For people. Small pids are also characters, and `inspect/1` would show the text.
  @doc false
  @spec pids([pos_integer()]) :: String.t()
  def pids(os_pids), do: inspect(os_pids, charlists: :as_lists)

  # From what a NIF answers.
  @doc false
  @spec from_native(atom(), {atom(), integer() | nil}) :: t()
  def from_native(operation, {reason, os_pid}) do
    %__MODULE__{operation: operation, reason: reason, os_pid: os_pid}
  end
end
