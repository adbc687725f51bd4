defmodule Snakepit.Launch do
  @moduledoc false

  # The way from a worker id to a process that runs: reserve, start, activate. The caller of `run/1` owns the
  # process, which the ledger has from before it executes its program. If a step fails, everything before it is
  # undone, and nothing is left.
  #
  # Workers, `Snakepit.cmd/3` and `Snakepit.stream!/2` all start their processes here.

  alias Snakepit.{Command, Error, Guardian, Native, Run, RunState, Stdio}
  alias Snakepit.Command.Request
  alias Snakepit.Guardian.Grace
  alias Snakepit.Pool.ProcessRegistry

  # How long a start waits for a guardian that is being started again, and for the process of the
  # last worker of the same id to be gone. Without it the supervisor of a worker would use up its
  # restarts in the milliseconds that both take. A guardian whose server was killed takes as long as
  # its children were promised on top of it.
  @patience_ms 10_000
  @pause_ms 10
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000
  # What the ledger keeps of a long command line.
  @recorded_bytes 65_536
  @recorded_arguments 256
  @recorded_argument_bytes 256
  # The states of a run that starts nothing any more.
  @ending [:shutting_down, :terminated]

  @typedoc """
  The pipes that a `Snakepit.Stdio` of the command wants are made. With `lifeline` there is one.
  """
  @type plan :: %{
          id: String.t(),
          command: Command.t(),
          lifeline: boolean()
        }

  @typedoc """
  `guardian` is a monitor of who speaks for it: its owner treats the end of that as `:guardian_down`,
  because one that is killed tells nobody. `streams` are this BEAM's ends of its pipes.
  """
  @type t :: %__MODULE__{
          child: Guardian.child(),
          guardian: reference(),
          streams: Stdio.Ends.t(),
          lifeline: :socket.socket() | nil
        }

  @enforce_keys [:child, :guardian]
  defstruct [:child, :guardian, :lifeline, streams: %Stdio.Ends{}]

  @doc "Returns an id that no other worker of this BEAM has."
  def unique_id(prefix), do: "#{prefix}-#{System.unique_integer([:positive])}"

  @doc "Starts what is planned. When this returns it is recorded and has executed its program."
  @spec run(plan()) :: {:ok, t()} | {:error, Error.t()}
  def run(plan) do
    # Order: before anything is reserved, so that there is nothing to undo.
    with :ok <- Request.check_length(plan.command) do
      patience = @patience_ms + Grace.longest(Run.current())
      run(plan, System.monotonic_time(:millisecond) + patience)
    end
  end

  # Order: the state first. A process that is started during a stop would have to be ended by that stop, and so
  # would the next one, without end.
  defp run(plan, deadline) do
    case RunState.current() do
      nil -> Run.not_started!()
      state when state in @ending -> {:error, %Error{operation: :start, reason: :shutting_down}}
      _running_or_about_to -> persist(plan, deadline)
    end
  end

  defp persist(plan, deadline) do
    with {:error, error} <- attempt(plan) do
      # Order: whether it can pass is asked only of what failed, so a start that works costs nothing.
      cond do
        RunState.current() in @ending -> {:error, %{error | reason: :shutting_down}}
        not passes?(error, plan.id) -> {:error, error}
        System.monotonic_time(:millisecond) > deadline -> {:error, error}
        true -> pause_and_run(plan, deadline)
      end
    end
  end

  defp pause_and_run(plan, deadline) do
    # Nothing tells when a name is registered again.
    receive do
    after
      @pause_ms -> run(plan, deadline)
    end
  end

  # The guardian or the registry is being started again.
  defp passes?(%Error{reason: reason}, _id) when reason in [:guardian_down, :registry_down],
    do: true

  # It was the child of a guardian that died before the release, and this one does not know it.
  defp passes?(%Error{operation: :release, reason: :esrch}, _id), do: true

  # More children waited at the gate than it keeps there, and it was one of those.
  defp passes?(%Error{operation: :spawn, step: :fork, reason: :esrch}, _id), do: true

  # The guardian has not yet received the descriptors that others have passed to it.
  defp passes?(%Error{operation: :connect, reason: reason}, _id)
       when reason in [:eagain, :etoomanyrefs],
       do: true

  # The connection was made to the socket of a guardian that died.
  defp passes?(%Error{step: :stdio, reason: :enotconn}, _id), do: true

  # The registry was started anew in between.
  defp passes?(%Error{reason: :not_reserved}, _id), do: true

  # Its owner was killed, and its process is being ended.
  defp passes?(%Error{reason: :already_registered}, id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, %{owner: owner}} when owner == self() -> forget_attempt(id)
      {:ok, %{owner: owner}} -> not Process.alive?(owner)
      {:error, _gone} -> true
    end
  end

  defp passes?(_error, _id), do: false

  # Of the attempt before: it failed with the guardian, and could not be undone because the registry was
  # being started again too, which got it back from the ledger.
  defp forget_attempt(id) do
    ProcessRegistry.unregister_worker(id)
    true
  end

  defp attempt(plan) do
    with :ok <- ProcessRegistry.reserve_worker(plan.id) do
      case connect(plan) do
        {:ok, command, connected} -> start(plan.id, command, connected)
        {:error, error} -> undo(plan.id, nil, [], error)
      end
    end
  end

  # Order: what is passed shows its token before the guardian is asked for it.
  defp connect(%{command: command, lifeline: lifeline?}) do
    with {:ok, command, connected} <- connect_stdio(command),
         do: connect_lifeline(command, connected, lifeline?)
  end

  defp connect_stdio(%{stdio: %Stdio{} = stdio} = command) do
    with {:ok, streams, stdio} <- Guardian.open_streams(stdio),
         do: {:ok, %{command | stdio: stdio}, [streams: streams]}
  end

  defp connect_stdio(command), do: {:ok, command, []}

  defp connect_lifeline(command, connected, false), do: {:ok, command, connected}

  defp connect_lifeline(command, connected, true) do
    case Guardian.connect_socket() do
      {:ok, socket, token} ->
        {:ok, %{command | lifeline: token}, [{:lifeline, socket} | connected]}

      {:error, error} ->
        close(connected)
        {:error, error}
    end
  end

  # Order: started before it is registered. The ledger has had it since it waited at the gate, and until the
  # registry has it too, the guardian ends it with this process.
  defp start(id, command, connected) do
    case Guardian.start(command, id) do
      {:ok, child, guardian} ->
        case ProcessRegistry.activate_child(id, child, recorded(command.cmd)) do
          :ok ->
            {:ok, struct!(__MODULE__, [child: child, guardian: guardian] ++ connected)}

          {:error, error} ->
            Process.demonitor(guardian, [:flush])
            undo(id, child, connected, error)
        end

      {:error, error} ->
        undo(id, nil, connected, describe(error, command))
    end
  end

  # The ledger's is for people. An entry of its journal is not longer than 1 MiB.
  defp recorded(arguments) do
    if IO.iodata_length(arguments) <= @recorded_bytes,
      do: arguments,
      else: arguments |> Enum.map(&shorten/1) |> Enum.take(@recorded_arguments)
  end

  defp shorten(argument) when byte_size(argument) <= @recorded_argument_bytes, do: argument

  defp shorten(argument),
    do: :binary.copy(binary_part(argument, 0, @recorded_argument_bytes)) <> "..."

  # The step that failed, with what it was about.
  defp describe(%Error{step: step} = error, _command) when step in [:cap_kill, :lease],
    do: error

  defp describe(%Error{detail: nil, step: step} = error, command) when step != nil,
    do: %{error | detail: step(step, error.reason, command)}

  defp describe(error, _command), do: error

  defp step(:execve, :enoent, %{cmd: [program | _]}) do
    "cannot execute #{inspect(program)}: #{Error.posix(:enoent)}; the program, or the interpreter " <>
      "that its first line names, was not found"
  end

  defp step(:execve, reason, %{cmd: [program | _]}),
    do: "cannot execute #{inspect(program)}: #{Error.posix(reason)}"

  defp step(:cd, reason, %{cd: directory}) when directory != nil,
    do: "cannot change to the directory #{inspect(directory)}: #{Error.posix(reason)}"

  defp step(:stdio, reason, %{stdio: {:file, path, _mode}}),
    do: step(:stdio, reason, %{stdio: {:file, path}})

  defp step(:stdio, reason, %{stdio: {:file, path}}),
    do: "cannot open #{inspect(path)} for its output: #{Error.posix(reason)}"

  defp step(:rlimits, reason, %{rlimits: limits}),
    do: "cannot set the limits #{inspect(limits)}: #{Error.posix(reason)}"

  defp step(step, reason, _command), do: "#{step}: #{Error.posix(reason)}"

  defp undo(id, child, connected, error) do
    close(connected)
    if child, do: kill(child)
    forget(id, child)
    {:error, error}
  end

  @doc "Ends a tree at once. Its messages are taken out of the mailbox."
  @spec kill(Guardian.child()) :: :ok | {:error, Error.t()}
  def kill(child) do
    answer = stop(child, :sigkill, 0)
    flush(child.id)
    answer
  end

  @doc """
  Ends a tree, with SIGKILL after `timeout_ms`. Without a guardian, who is gone when this returns is the
  child; the rest is swept up before there is another guardian.
  """
  @spec stop(Guardian.child(), Native.signal(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def stop(child, signal, timeout_ms) do
    with {:error, %Error{reason: :guardian_down}} = error <-
           Guardian.stop(child, signal: signal, timeout: timeout_ms) do
      Native.process_stop([child.identity], signal, timeout_ms, @kill_wait_ms)
      error
    end
  end

  @doc "Takes the entry of an ended process out of the registry."
  @spec forget(String.t(), Guardian.child() | nil) :: :ok | {:error, Error.t()}
  def forget(id, child) do
    case ProcessRegistry.unregister_worker(id) do
      {:error, %Error{reason: :alive}} when child != nil ->
        # A program that could not be executed is told of before it is gone.
        Native.process_await([child.identity], @kill_wait_ms)
        ProcessRegistry.unregister_worker(id)

      answer ->
        answer
    end
  end

  defp flush(child_id) do
    receive do
      {Guardian, ^child_id, _event} -> flush(child_id)
    after
      0 -> :ok
    end
  end

  defp close(connected) do
    if connected[:streams], do: Stdio.close(connected[:streams])
    if connected[:lifeline], do: Guardian.disconnect(connected[:lifeline])
  end
end
