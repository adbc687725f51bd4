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

  `spawn/2` returns a process that exists and has executed nothing: its pid can be recorded. `release/1`
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

  alias Snakepit.{Command, Error, Native, Options, Pipe, Run}
  alias Snakepit.Guardian.{Grace, Server}

  @call_timeout 60_000
  @connect_timeout 5_000
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

    with {:ok, request} <- Command.to_request(command, markers(worker_id)) do
      call({:spawn, Map.put(request, :worker_id, worker_id)}, :spawn)
    end
  end

  @doc "Lets a child execute its program; returns when it runs, or with the step that failed."
  @spec release(child()) :: :ok | {:error, Error.t()}
  def release(%{id: id}), do: call({:release, id}, :release)

  @doc """
  Ends a child and everything that descends from it; returns when all of it is gone.

  ## Options

  #{Options.docs(@stop)}

  """
  @spec stop(child(), keyword()) :: :ok | {:error, Error.t()}
  def stop(%{id: id}, opts \\ []) do
    %{signal: signal, timeout: timeout} = Options.validate!(opts, @stop)
    call({:stop, id, signal, timeout}, :stop, timeout)
  end

  # As `stop/2`, without waiting: the owner hears of the end.
  @doc false
  @spec begin_stop(child(), Native.signal(), non_neg_integer()) :: :ok
  def begin_stop(%{id: id}, signal, timeout_ms),
    do: GenServer.cast(__MODULE__, {:stop, id, signal, timeout_ms})

  @doc "Sends a signal to the `:process`, its `:group` or its whole `:tree`."
  @spec signal(child(), Native.signal(), :process | :group | :tree) :: :ok | {:error, Error.t()}
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

  @doc """
  How many children run, how many wait at the gate, and how many processes the guardian has adopted.
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

  # Pipes that a child can be given, by the token: from it, and to it if there is to be input. They are closed
  # when the calling process dies.
  @doc false
  @spec connect_pipes(boolean()) ::
          {:ok, {Pipe.t() | nil, Pipe.t()}, binary()} | {:error, Error.t()}
  def connect_pipes(input?) do
    token = :crypto.strong_rand_bytes(16)

    with {:ok, _path} <- listener(),
         {:ok, channel} <- Server.channel(Run.current()),
         {:ok, pipes} <- Native.pipes_pass(channel, token, input?) do
      {:ok, pipes, token}
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
  @spec disconnect(:gen_tcp.socket() | :socket.socket() | {Pipe.t() | nil, Pipe.t()}) :: :ok
  def disconnect(socket) when is_port(socket), do: :gen_tcp.close(socket)

  def disconnect({input, output}) when is_reference(input) or input == nil do
    if input, do: Pipe.close(input)
    Pipe.close(output)
  end

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
  defp call(request, operation, extra \\ 0) do
    GenServer.call(__MODULE__, request, @call_timeout + extra)
  catch
    :exit, {reason, _call} when reason != :timeout ->
      {:error, %Error{operation: operation, reason: :guardian_down}}
  end
end
