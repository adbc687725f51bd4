defmodule Snakepit.Error do
  @moduledoc """
  An error: what failed, why, and with which process.

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
    * `:busy` - no worker of the pool was free, and the caller was not to wait
    * `:pool_down` - there is no such pool
    * `:idle_timeout` - the program wrote nothing for longer than the caller wanted to wait
    * `:max_output` - there was more output than the caller wanted to have
    * `:max_packet` - a line or packet was longer than the caller wanted to have
    * `:emsgsize` - a packet is longer than the length before it can say, or a message than a worker allows
    * `:epipe` - nobody reads what was to be written
    * `:closed` - the input of the process was closed
    * `:worker_down` - there is no such worker, or it ended while it was being used
    * `:exception` - a command has raised; `detail` has the traceback
    * `:unavailable`, `:unimplemented`, `:internal` and others - how a gRPC server has ended a call, see
      `Snakepit.GRPCWorker`
    * `:not_owner` - a stream was begun by one process and continued by another
    * `:shutting_down` - Snakepit is about to stop, and starts nothing any more
    * `:process_table`, `:pidfd`, `:guardian` - Snakepit cannot keep its promises where it was started, and has not
      started; `detail` says what to do
    * `:not_its_table` - `/proc` does not contain the BEAM that reads it, so a process that is missing there need
      not be gone
    * `:invalid_run_id`, `:not_an_identity` - the value is corrupt, or was never a run id or identity

  Where a process could not be started, `step` says what failed on the way: `:fork`, `:stdio`,
  `:execve`, `:cap_kill` (the guardian could not end it), or the option in question. `status` or `signal` says how
  a process ended, and `output` is the end of what it wrote, where that says why. Of what could not be written, the
  process has, or will have, the first `written` bytes. `worker_id` is the worker's, if it was one.

  `Exception.message/1` returns all of it as a sentence, and `inspect/1` shows that sentence after the reason. So
  the reports of supervisors can be read: they inspect the error with which a child failed to start.

      iex> inspect(%Snakepit.Error{operation: :stop, reason: :eperm, worker_id: "w", os_pid: 7})
      "#Snakepit.Error<:eperm, stop failed (worker w, OS process 7): operation not permitted (eperm)>"

  """

  alias Snakepit.Output.Tail

  @type t :: %__MODULE__{
          operation: atom(),
          reason: atom(),
          worker_id: String.t() | nil,
          os_pid: integer() | nil,
          os_pids: [pos_integer()],
          step: atom() | nil,
          status: non_neg_integer() | nil,
          signal: atom() | pos_integer() | nil,
          detail: String.t() | nil,
          output: binary() | nil,
          written: non_neg_integer() | nil
        }

  defexception [
    :operation,
    :reason,
    :worker_id,
    :os_pid,
    :step,
    :status,
    :signal,
    :detail,
    :output,
    :written,
    os_pids: []
  ]

  @impl true
  def message(%__MODULE__{} = error),
    do: "#{error.operation} failed#{subject(error)}: #{cause(error)}"

  defp subject(%{worker_id: nil, os_pid: nil}), do: ""
  defp subject(%{worker_id: nil, os_pid: os_pid}), do: " (OS process #{os_pid})"
  defp subject(%{worker_id: worker_id, os_pid: nil}), do: " (worker #{worker_id})"
  defp subject(error), do: " (worker #{error.worker_id}, OS process #{error.os_pid})"

  @doc false
  @spec cause(t()) :: String.t()
  def cause(%__MODULE__{} = error), do: (error.detail || describe(error)) <> output(error)

  @doc """
  Returns the error for the reason with which a worker has exited.

      iex> Snakepit.Error.from_exit({:exit_status, 3}) |> Exception.message()
      "worker failed: the program ended with status 3"

  """
  @spec from_exit(term()) :: t()
  def from_exit(%__MODULE__{} = error), do: error
  def from_exit({:shutdown, reason}), do: from_exit(reason)

  def from_exit({:exit_status, status}),
    do: %__MODULE__{operation: :worker, reason: :exit_status, status: status}

  def from_exit({:exit_signal, signal}),
    do: %__MODULE__{operation: :worker, reason: :exit_signal, signal: signal}

  def from_exit({:survivors, os_pids}),
    do: %__MODULE__{operation: :worker, reason: :survivors, os_pids: os_pids}

  def from_exit(:normal), do: from_exit({:exit_status, 0})

  def from_exit(reason) when is_atom(reason),
    do: %__MODULE__{operation: :worker, reason: reason}

  def from_exit(reason) do
    detail = Exception.format_exit(reason)
    %__MODULE__{operation: :worker, reason: :worker_down, detail: detail}
  end

  defp output(%{output: output}) when output in [nil, ""], do: ""
  defp output(%{output: output}), do: "; its last output:\n" <> Tail.text(output)

  defp describe(%{reason: :refused, os_pid: os_pid}) when is_integer(os_pid) and os_pid <= 0,
    do: "0 and negative numbers are not pids"

  defp describe(%{reason: :refused}),
    do: "init, the BEAM itself and the leaders of its group and session are never signalled"

  defp describe(%{step: :cap_kill}) do
    "the guardian has no CAP_KILL, so it could not end a process of another user: add CAP_KILL to the " <>
      "capabilities that CAP_SETUID is in (cap_add, CapabilityBoundingSet=), or leave out :user"
  end

  defp describe(%{reason: :ambiguous}),
    do: "it cannot be told whether this is the process that was meant, so it was left alone"

  defp describe(%{reason: :survived}),
    do:
      "SIGKILL was sent, but the process is still there, perhaps in an uninterruptible system call"

  defp describe(%{reason: :survivors, os_pids: os_pids}),
    do: "these processes cannot be ended: #{pids(os_pids)}"

  defp describe(%{reason: :esrch}), do: "no such process (esrch)"
  defp describe(%{reason: :not_an_identity}), do: "not an identity that Snakepit made"

  defp describe(%{reason: :not_its_table}),
    do: "/proc does not contain the BEAM that reads it: mount this pid namespace's own"

  defp describe(%{operation: :worker, reason: :exit_status, status: 0}),
    do: "the program ended with status 0; a worker's program must stay in the foreground"

  defp describe(%{reason: :exit_status, status: status}) when status != nil,
    do: "the program ended with status #{status}"

  defp describe(%{reason: :exit_signal, signal: signal}) when signal != nil,
    do: "the program was ended by #{signal}"

  defp describe(%{reason: :timeout}), do: "it took longer than its :timeout"

  defp describe(%{reason: :idle_timeout}),
    do: "the program wrote nothing for as long as its :idle_timeout, and was killed"

  defp describe(%{reason: :not_owner}) do
    "the program belongs to the process that began to run the stream, and another one has continued it: " <>
      "run the whole stream in one process"
  end

  defp describe(%{reason: :max_output}),
    do: "the program wrote more than its :max_output, and was killed"

  defp describe(%{reason: :guardian_down}),
    do: "the guardian was lost, and the process with it; another guardian is being started"

  defp describe(%{reason: :registry_down}),
    do: "the registry of workers is being started again; try again"

  defp describe(%{reason: :shutting_down}), do: "Snakepit is shutting down and starts nothing"
  defp describe(%{reason: :worker_down}), do: "there is no such worker"
  defp describe(%{reason: :heartbeat_timeout}), do: "it gave no heartbeats and was ended"
  defp describe(%{reason: :shutdown}), do: "it was told to stop"

  defp describe(%{reason: :already_registered}),
    do: "a worker of this id runs already; choose another :id"

  defp describe(%{reason: :not_found, worker_id: id}) when id != nil,
    do: "there is no such worker"

  defp describe(%{reason: :not_reserved}), do: "its id is not reserved, or is activated already"
  defp describe(%{reason: :alive}), do: "its process is still there"

  defp describe(%{step: step, reason: reason}) when step != nil,
    do: "#{step}: #{posix(reason)}"

  defp describe(%{reason: reason}), do: posix(reason)

  @doc false
  @spec posix(atom()) :: String.t()
  # Erlang's words for it are those of the first Unix.
  def posix(:eperm), do: "operation not permitted (eperm)"

  def posix(reason) do
    case :file.format_error(reason) do
      ~c"unknown POSIX error" ++ _ -> to_string(reason)
      text -> "#{text} (#{reason})"
    end
  end

  # For people. Small pids are also characters, and `inspect/1` would show the text.
  @doc false
  @spec pids([pos_integer()]) :: String.t()
  def pids(os_pids), do: inspect(os_pids, charlists: :as_lists)

  # Of what a NIF has returned.
  @doc false
  @spec from_native(atom(), {atom(), integer() | nil}) :: t()
  def from_native(operation, {reason, os_pid}) do
    %__MODULE__{operation: operation, reason: reason, os_pid: os_pid}
  end

  defimpl Inspect do
    def inspect(error, _opts),
      do: "#Snakepit.Error<#{Kernel.inspect(error.reason)}, #{Exception.message(error)}>"
  end
end
