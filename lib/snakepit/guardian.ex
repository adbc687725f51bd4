defmodule Snakepit.Guardian do
  @moduledoc """
  The one process that talks to the guardian, the helper that starts, watches and ends all others.

  `Snakepit.Worker` is built on it, and is what most applications use:

      iex> command = Snakepit.Command.new!(cmd: ["sleep", "60"])
      iex> {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: "doc")
      iex> :ok = Snakepit.Guardian.release(child)
      iex> Snakepit.ProcessKiller.process_alive?(child.os_pid)
      true
      iex> Snakepit.Guardian.stop(child)
      :ok
      iex> Snakepit.ProcessKiller.process_alive?(child.os_pid)
      false

  ## The gate

  `spawn/2` returns a process that exists, is recorded in the ledger, and has executed nothing. `release/1`
  lets it execute its program and returns when it has. In between, the death of the caller, of this
  process, of the guardian or of the BEAM ends it before it has run anything.

  ## What the owner hears

  The process that calls `spawn/2` owns the child. When the child ends, it gets

    * `{Snakepit.Guardian, id, {:exited, exit, tail}}` at once, with a map of status, signal and
      resource usage, and the end of the output; `asked: true` is in the map if `stop_all/1` was called
      before
    * `{Snakepit.Guardian, id, {:tree_gone, killed}}` when nothing that the child started is left
    * `{Snakepit.Guardian, id, {:survivors, os_pids}}` instead, when what is left cannot be ended. If the
      child itself is among them, there was no `:exited` before

  When the owner dies, the child and its tree are killed.

  When the guardian dies first, the owner gets `{Snakepit.Guardian, id, :guardian_down}`, unless this process was
  killed. So an owner that waits for a child for long monitors `Snakepit.Guardian` as well.

  ## When the guardian dies

  The kernel kills its children. This process kills what else carries the markers or the lineage of the run, answers
  waiting callers with `:guardian_down`, and exits. Its supervisor starts this process and another guardian, and workers
  start their processes again. If this process is killed, the guardian ends everything and then itself, and the next
  guardian starts after that.
  """

  alias Snakepit.{Command, Error, Native, Options, ProcessKiller, Run, Stdio}
  alias Snakepit.Guardian.{Grace, Server}

  @call_timeout 60_000
  @connect_timeout 5_000
  # What the kernel may take to end a child that has run nothing.
  @failed_end_ms 5_000
  # What is read at once from a socket of the `:socket` module, which reads 8 KiB by itself.
  @read_bytes 65_536
  @no_listener [:econnrefused, :enoent, :econnreset, :epipe, :closed]

  # Checked in the caller, and not where a wrong one would take the guardian down.
  @spawn [
    worker_id: [type: :text, default: "", doc: "the worker that the marks of the process name"]
  ]

  @stop [
    signal: [type: :signal, default: :sigterm, doc: "what asks it to end"],
    timeout: [type: :milliseconds, default: 2_000, doc: "how long it has until SIGKILL"]
  ]

  @stop_all [
    timeout: [
      type: :milliseconds,
      default: 2_000,
      doc: "how long those have that have no `:stop_timeout` of their own"
    ],
    strict: [type: :boolean, default: false, doc: "whether the `:timeout` holds for all"]
  ]

  @type child :: %{id: pos_integer(), os_pid: pos_integer(), identity: binary()}

  @doc false
  defdelegate child_spec(opts), to: Server

  @doc """
  A process that will run `command` once it is released.

  ## Options

  #{Options.docs(@spawn)}

  """
  @spec spawn(Command.t(), keyword()) :: {:ok, child()} | {:error, Error.t()}
  def spawn(%Command{} = command, opts \\ []) do
    %{worker_id: worker_id} = Options.validate!(opts, @spawn)
    with {:ok, request} <- request(command, worker_id), do: call({:spawn, request}, :spawn)
  end

  @doc "Lets a child execute its program; returns when it runs, or with the step that failed."
  @spec release(child()) :: :ok | {:error, Error.t()}
  def release(%{id: id}) do
    case call({:release, id}, :release) do
      {:ok, _child} -> :ok
      {:failed, _child, error} -> {:error, error}
      {:error, error} -> {:error, error}
    end
  end

  # As `spawn/2` and `release/1` in one step, with a monitor of the process that speaks for the guardian: the end of
  # that is the end of the child, and if it is killed nobody says so. If the program could not be executed, nothing
  # of the child is left when this returns.
  @doc false
  @spec start(Command.t(), String.t()) :: {:ok, child(), reference()} | {:error, Error.t()}
  def start(%Command{} = command, worker_id) do
    with {:ok, request} <- request(command, worker_id),
         server when server != nil <- Process.whereis(__MODULE__) do
      # Order: before the start, and of this process, whatever has its name later.
      monitor = Process.monitor(server)

      with {:error, error} <-
             started(call(server, {:spawn, %{request | release: true}}, :spawn, 0)) do
        Process.demonitor(monitor, [:flush])
        {:error, error}
      else
        {:ok, child} -> {:ok, child, monitor}
      end
    else
      nil -> {:error, %Error{operation: :spawn, reason: :guardian_down}}
      {:error, error} -> {:error, error}
    end
  end

  # A child whose program could not be executed says so before it is gone.
  defp started({:failed, child, error}) do
    Native.process_await([child.identity], @failed_end_ms)
    {:error, error}
  end

  defp started(answer), do: answer

  defp request(command, worker_id) do
    with {:ok, request} <- Command.to_request(command, markers(worker_id)),
         do: {:ok, Map.put(request, :worker_id, worker_id)}
  end

  @doc """
  Ends a child and everything that descends from it; returns when all of it is gone.

  ## Options

  #{Options.docs(@stop)}

  """
  @spec stop(child(), keyword()) :: :ok | {:error, Error.t()}
  def stop(%{id: id}, opts \\ []) do
    %{signal: signal, timeout: timeout} = Options.validate!(opts, @stop)

    # It may be given more time, by an abort signal or because it asks for more. A guardian that does not answer is
    # replaced, and then the answer is that.
    call({:stop, id, signal, timeout}, :stop, :infinity)
  end

  # As `stop/2`, without waiting: the owner hears of the end.
  @doc false
  @spec begin_stop(child(), ProcessKiller.signal(), non_neg_integer()) :: :ok
  def begin_stop(%{id: id}, signal, timeout_ms),
    do: GenServer.cast(__MODULE__, {:stop, id, signal, timeout_ms})

  # A child that was asked to end has at least so much time from now on.
  @doc false
  @spec extend(child(), non_neg_integer()) :: :ok
  def extend(%{id: id}, timeout_ms) do
    # In the caller, and not where it would take the guardian down.
    Options.check!(timeout_ms, :milliseconds, :timeout)
    GenServer.cast(__MODULE__, {:extend, id, timeout_ms})
  end

  # Begins or renews a lease. What was started with it is asked to end at `ask_at`, and killed at `kill_at`, both by
  # `Snakepit.Native.clock_read/0`, unless it is renewed before, whatever becomes of this BEAM.
  @doc false
  @spec renew_lease(non_neg_integer(), non_neg_integer(), non_neg_integer()) :: :ok
  def renew_lease(lease, ask_at, kill_at),
    do: GenServer.cast(__MODULE__, {:lease, lease, ask_at, kill_at})

  @doc "Sends a signal to the `:process`, its `:group` or its whole `:tree`."
  @spec signal(child(), ProcessKiller.signal(), :process | :group | :tree) ::
          :ok | {:error, Error.t()}
  def signal(%{id: id}, signal, scope \\ :group) when scope in [:process, :group, :tree] do
    Options.check!(signal, :signal, :signal)
    call({:signal, id, signal, scope}, :signal)
  end

  @doc """
  Ends all children that there are now, and everything that descends from them; returns when those are
  gone. Children that are started meanwhile live on.

  Each gets the stop signal of its command, and SIGKILL after the `:stop_timeout` of its command.

  ## Options

  #{Options.docs(@stop_all)}

  """
  @spec stop_all(keyword()) ::
          {:ok, %{stopped: integer(), killed: integer()}} | {:error, Error.t()}
  def stop_all(opts \\ []) do
    %{timeout: timeout, strict: strict?} = Options.validate!(opts, @stop_all)
    longest = if strict?, do: timeout, else: max(timeout, Grace.longest(Run.current()))
    call({:stop_all, timeout, strict?}, :stop_all, longest)
  end

  @doc "Returns the end of a child's output so far."
  @spec output_tail(child()) :: {:ok, binary()} | {:error, Error.t()}
  def output_tail(%{id: id}), do: call({:tail, id}, :output_tail)

  # The pids that everything in the tree of a child is below of, each with its start or 0; and the processor time of
  # adopted processes that have ended, in microseconds.
  @doc false
  @spec roots(child()) ::
          {:ok, [{pos_integer(), non_neg_integer()}], {non_neg_integer(), non_neg_integer()}}
          | {:error, Error.t()}
  def roots(%{id: id}), do: call({:roots, id}, :usage)

  @doc """
  Returns how many children run, how many wait at the gate, and how many processes the guardian has adopted.
  """
  @spec info() :: {:ok, map()} | {:error, Error.t()}
  def info, do: call(:info, :info)

  @doc "Returns the OS pid of the guardian."
  @spec os_pid() :: pos_integer()
  def os_pid, do: GenServer.call(__MODULE__, :os_pid)

  @doc """
  A connection that a child can be given: pass the token as `stdio: {:pipe, token}` or as
  `lifeline: token`. What the child writes to it arrives at the socket, and the other way round.
  Socket options are those of `:gen_tcp`.
  """
  @spec connect([:gen_tcp.connect_option()]) ::
          {:ok, :gen_tcp.socket(), binary()} | {:error, Error.t()}
  def connect(options \\ []) do
    token = :crypto.strong_rand_bytes(16)
    first = [:binary, active: false, packet: :raw]

    with {:ok, path} <- listener(),
         {:ok, socket} <- :gen_tcp.connect({:local, path}, 0, first, @connect_timeout) do
      shown = with :ok <- :gen_tcp.send(socket, token), do: :inet.setopts(socket, options)

      connected(shown, socket, token)
    else
      {:error, reason} -> not_connected(reason)
    end
  end

  # As `connect/1`, for a socket of the `:socket` module: what has arrived can be asked for at any time,
  # and is not lost when a send fails, as it is with `:gen_tcp`, whose sockets are ports.
  @doc false
  @spec connect_socket() :: {:ok, :socket.socket(), binary()} | {:error, Error.t()}
  def connect_socket do
    token = :crypto.strong_rand_bytes(16)

    with {:ok, path} <- listener(),
         {:ok, socket} <- :socket.open(:local, :stream) do
      shown =
        with :ok <- :socket.setopt(socket, {:otp, :rcvbuf}, @read_bytes),
             :ok <- :socket.connect(socket, %{family: :local, path: path}),
             do: :socket.send(socket, token)

      connected(shown, socket, token)
    else
      {:error, reason} -> not_connected(reason)
    end
  end

  # The streams of a program that lead to this BEAM, and what they are then, with the token for a child. They are
  # closed when the calling process dies.
  @doc false
  @spec open_streams(Stdio.t()) :: {:ok, Stdio.Ends.t(), Stdio.t()} | {:error, Error.t()}
  def open_streams(%Stdio{} = stdio) do
    token = :crypto.strong_rand_bytes(16)

    with {:ok, _path} <- listener(),
         {:ok, channel} <- Server.channel(Run.current()),
         {:ok, ends} <- pass(stdio, channel, token) do
      {:ok, ends, %{stdio | token: token}}
    else
      {:error, {reason, nil}} -> not_connected(reason)
      {:error, reason} -> not_connected(reason)
    end
  end

  defp pass(%{terminal: nil} = stdio, channel, token) do
    with {:ok, {input, output, error}} <- Native.pipes_pass(channel, token, Stdio.pipes(stdio)),
         do: {:ok, %Stdio.Ends{input: input, output: output, error: error}}
  end

  defp pass(%{terminal: size, modes: modes}, channel, token) do
    with {:ok, terminal} <- Native.terminal_pass(channel, token, size, modes),
         do: {:ok, %Stdio.Ends{input: terminal, output: terminal}}
  end

  # A connection over which the guardian is told what a person's terminal was set to, to restore it if this BEAM
  # is killed.
  @doc false
  @spec open_guard() :: {:ok, reference()} | {:error, Error.t()}
  def open_guard do
    with {:ok, path} <- listener(),
         {:ok, guard} <- Native.guard_open(path) do
      {:ok, guard}
    else
      {:error, {reason, nil}} -> not_connected(reason)
      {:error, reason} -> not_connected(reason)
    end
  end

  # The path of a guardian that is gone leads nowhere, until the next one has a socket of its own.
  defp listener do
    case Server.listener(Run.current()) do
      nil ->
        {:error, :closed}

      "" ->
        detail = "no socket can be made in the run's directory, nor in the temporary one"
        {:error, %Error{operation: :connect, reason: :enotconn, detail: detail}}

      path ->
        {:ok, path}
    end
  end

  defp connected(:ok, socket, token), do: {:ok, socket, token}

  # The caller may live for long, and try again and again.
  defp connected({:error, reason}, socket, _token) do
    disconnect(socket)
    not_connected(reason)
  end

  defp not_connected(%Error{} = error), do: {:error, error}

  # The socket goes with the guardian, and the server may not have heard of that yet.
  defp not_connected(reason) do
    reason = if reason in @no_listener, do: :guardian_down, else: reason
    {:error, %Error{operation: :connect, reason: reason}}
  end

  @doc false
  @spec disconnect(:gen_tcp.socket() | :socket.socket()) :: :ok
  def disconnect(socket) when is_port(socket), do: :gen_tcp.close(socket)

  def disconnect(socket) do
    :socket.close(socket)
    :ok
  end

  defp markers(worker_id) do
    List.keyreplace(
      Server.markers(),
      "SNAKEPIT_WORKER_ID",
      0,
      {"SNAKEPIT_WORKER_ID", worker_id}
    )
  end

  # The guardian keeps all deadlines; this one is for a guardian that has stopped answering.
  defp call(request, operation, extra \\ 0), do: call(__MODULE__, request, operation, extra)

  defp call(server, request, operation, extra) do
    GenServer.call(
      server,
      request,
      if(extra == :infinity, do: extra, else: @call_timeout + extra)
    )
  catch
    :exit, {reason, _call} when reason != :timeout ->
      {:error, %Error{operation: operation, reason: :guardian_down}}
  end
end
