defmodule Snakepit.ProcessKiller do
  @moduledoc """
  Signals and ends OS processes, and never another process than was meant.

  Every function takes an OS pid or a `Snakepit.OSProcess`. With a pid it acts on the process that
  has it at the time of the call; with an `OSProcess` it acts on that very process or on none, also
  when the pid has been recycled since. A process that has ended already counts as success.

  These are refused, whatever the caller passes: numbers that are no pid, pid 1, the BEAM itself, its guardian, and
  the leaders and groups of its session.

  Waiting is by kernel notification. The calling process waits; schedulers do not.

  ## Examples

      iex> port = Port.open({:spawn_executable, "/bin/sleep"}, args: ["60"])
      iex> {:os_pid, os_pid} = Port.info(port, :os_pid)
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      true
      iex> Snakepit.ProcessKiller.kill_with_escalation(os_pid)
      :ok
      iex> Snakepit.ProcessKiller.process_alive?(os_pid)
      false

  """

  alias Snakepit.{Error, Native, Options, OSProcess, RunID}

  @typedoc "An OS pid, or a process known by its identity."
  @type target :: integer() | OSProcess.t()

  @typedoc "A POSIX name such as `:sigterm`, or the number of a signal that exists here."
  @type signal :: atom() | pos_integer()

  @typedoc "Milliseconds."
  @type timeout_ms :: non_neg_integer()

  # How long the kernel may take to carry out a SIGKILL before the process counts as a survivor.
  @kill_wait_ms 5_000

  @kill_by_run_id [
    timeout: [
      type: :milliseconds,
      default: 2_000,
      doc: "how long they may take to end after SIGTERM, all together"
    ],
    any_user: [
      type: :boolean,
      default: false,
      doc: "other users' processes too, for a BEAM that may end them"
    ]
  ]

  @doc """
  Sends one signal to one process.

      iex> {:error, error} = Snakepit.ProcessKiller.kill_process(1)
      iex> error.reason
      :refused

  """
  @spec kill_process(target(), signal()) :: :ok | {:error, Error.t()}
  def kill_process(target, signal \\ :sigterm) do
    Options.check!(signal, :signal)

    on_living(:kill_process, target, fn process ->
      Native.process_signal(process.identity, signal)
    end)
  end

  @doc """
  Sends one signal to every member of a process group.

  The group is meant by its number or by its leader. If the leader by which it is known has ended
  and a group with that number exists, nobody can tell whether it is the same, and the answer is
  `:ambiguous`.
  """
  @spec kill_process_group(target(), signal()) :: :ok | {:error, Error.t()}
  def kill_process_group(group, signal \\ :sigterm) do
    Options.check!(signal, :signal)
    result(:kill_process_group, Native.group_signal(group_argument(group), signal))
  end

  @doc """
  Ends a process: SIGTERM (and SIGCONT, in case it is stopped), and SIGKILL if it is still there
  after `timeout_ms`. Returns when it is gone.

  To end many processes, pass a list: they share one grace period.
  """
  @spec kill_with_escalation(target() | [target()], timeout_ms()) :: :ok | {:error, Error.t()}
  def kill_with_escalation(target, timeout_ms \\ 2_000) do
    Options.check!(timeout_ms, :milliseconds)
    operation = :kill_with_escalation

    with {:ok, processes} <- living(operation, List.wrap(target)),
         identities = Enum.map(processes, & &1.identity),
         {:ok, outcomes} <-
           Native.process_stop(identities, :sigterm, timeout_ms, @kill_wait_ms) do
      processes |> Enum.zip(outcomes) |> first_failure(operation)
    else
      {:error, %Error{}} = error -> error
      {:error, reason} -> {:error, Error.from_native(operation, reason)}
    end
  end

  @doc """
  Ends a process group as `kill_with_escalation/2` ends a process. Returns when it has no member.
  """
  @spec kill_process_group_with_escalation(target(), timeout_ms()) :: :ok | {:error, Error.t()}
  def kill_process_group_with_escalation(group, timeout_ms \\ 2_000) do
    Options.check!(timeout_ms, :milliseconds)
    operation = :kill_process_group_with_escalation

    case Native.group_stop(group_argument(group), :sigterm, timeout_ms, @kill_wait_ms) do
      {:ok, outcome} -> first_failure([{group, outcome}], operation)
      {:error, reason} -> {:error, Error.from_native(operation, reason)}
    end
  end

  @doc """
  Ends every process of this user that carries the run id, and all that descends from one. Returns
  how many were ended, when they are gone.

  A process carries a run id as the whole value of `SNAKEPIT_RUN_ID` in its environment, or as an
  argument of its own behind `--run-id`. An argument that merely contains it does not count, and
  neither do the arguments of a process whose environment names another run.

  ## Options

  #{Options.docs(@kill_by_run_id)}

  """
  @spec kill_by_run_id(RunID.t(), keyword()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def kill_by_run_id(run_id, opts \\ []) do
    opts = Options.validate!(opts, @kill_by_run_id)

    with :ok <- check_run_id(:kill_by_run_id, run_id) do
      stopped(Native.run_stop(run_id, opts.any_user, opts.timeout, @kill_wait_ms))
    end
  end

  # For tests, as is `found/1`: no process survives SIGKILL, and no process table is unreadable,
  # because one asks.
  @doc false
  def stopped({:ok, %{survivors: []} = report}), do: {:ok, report.stopped + report.killed}

  def stopped({:ok, %{survivors: survivors}}) do
    os_pids = for {os_pid, _identity} <- survivors, do: os_pid
    {:error, %Error{operation: :kill_by_run_id, reason: :survivors, os_pids: os_pids}}
  end

  def stopped({:error, reason}), do: {:error, Error.from_native(:kill_by_run_id, reason)}

  @doc """
  Returns the live processes of this user that carry the run id, as `kill_by_run_id/2` would find them.

      iex> Snakepit.ProcessKiller.find_by_run_id(Snakepit.RunID.generate())
      {:ok, []}

  """
  @spec find_by_run_id(RunID.t()) :: {:ok, [OSProcess.t()]} | {:error, Error.t()}
  def find_by_run_id(run_id) do
    with :ok <- check_run_id(:find_by_run_id, run_id) do
      found(Native.run_find(run_id, false))
    end
  end

  @doc false
  def found({:ok, found}),
    do: {:ok, for({os_pid, id} <- found, do: %OSProcess{os_pid: os_pid, identity: id})}

  def found({:error, reason}), do: {:error, Error.from_native(:find_by_run_id, reason)}

  @doc """
  Returns whether a process can still run. A zombie cannot.

      iex> Snakepit.ProcessKiller.process_alive?(String.to_integer(System.pid()))
      true

  """
  @spec process_alive?(target()) :: boolean()
  def process_alive?(%OSProcess{} = process), do: OSProcess.alive?(process)
  def process_alive?(os_pid), do: match?({:ok, _process}, OSProcess.lookup(os_pid))

  @doc """
  Returns the command line of a process: its arguments joined by spaces. It is for people and need not be
  UTF-8; `Snakepit.OSProcess.info/1` has the arguments one by one.
  """
  @spec get_process_command(target()) :: {:ok, binary()} | {:error, Error.t()}
  def get_process_command(target) do
    with {:ok, info} <- info(:get_process_command, target) do
      {:ok, Enum.join(info.arguments, " ")}
    end
  end

  @doc "Returns the process group that a process is in."
  @spec get_process_group_id(target()) :: {:ok, non_neg_integer()} | {:error, Error.t()}
  def get_process_group_id(target) do
    with {:ok, info} <- info(:get_process_group_id, target), do: {:ok, info.pgid}
  end

  defp info(operation, target) do
    with {:ok, process} <- resolve(operation, target),
         {:error, error} <- OSProcess.info(process) do
      {:error, %{error | operation: operation}}
    end
  end

  defp resolve(_operation, %OSProcess{} = process), do: {:ok, process}

  defp resolve(operation, os_pid) do
    with {:error, error} <- OSProcess.lookup(os_pid) do
      {:error, %{error | operation: operation}}
    end
  end

  # Runs a NIF on the process, unless it has ended already.
  defp on_living(operation, target, fun) do
    case living(operation, [target]) do
      {:ok, []} -> :ok
      {:ok, [process]} -> result(operation, fun.(process))
      {:error, error} -> {:error, error}
    end
  end

  defp living(operation, targets) do
    Enum.reduce_while(targets, {:ok, []}, fn target, {:ok, processes} ->
      case resolve(operation, target) do
        {:ok, process} -> {:cont, {:ok, [process | processes]}}
        {:error, %Error{reason: :esrch}} -> {:cont, {:ok, processes}}
        {:error, error} -> {:halt, {:error, error}}
      end
    end)
  end

  defp result(_operation, {:ok, delivery}) when delivery in [:sent, :gone], do: :ok
  defp result(_operation, {:error, {:esrch, _os_pid}}), do: :ok
  defp result(operation, {:error, reason}), do: {:error, Error.from_native(operation, reason)}

  defp first_failure(outcomes, operation) do
    Enum.find_value(outcomes, :ok, fn
      {_target, outcome} when outcome in [:stopped, :killed, :gone] -> nil
      {target, outcome} -> {:error, failure(operation, target, outcome)}
    end)
  end

  defp failure(operation, target, outcome) do
    os_pid = if is_integer(target), do: target, else: target.os_pid
    reason = if outcome == :not_permitted, do: :eperm, else: outcome
    %Error{operation: operation, reason: reason, os_pid: os_pid}
  end

  defp group_argument(%OSProcess{identity: identity}), do: identity

  defp group_argument(pgid),
    do: Options.check!(pgid, {:custom, &is_integer/1, "a process group or its leader"})

  defp check_run_id(operation, run_id) do
    Options.check!(run_id, {:custom, &is_binary/1, "a run id"})

    if RunID.valid?(run_id) do
      :ok
    else
      detail = "expected seven characters of 0-9a-z, got: #{inspect(run_id)}"
      {:error, %Error{operation: operation, reason: :invalid_run_id, detail: detail}}
    end
  end
end
