defmodule Snakepit.Worker.Notify do
  @moduledoc false

  # The socket over which a worker's process says how it is, by the protocol of `sd_notify(3)`: datagrams with lines of
  # `NAME=value`. A process of its own, so that a worker that is busy hears of it later and loses nothing.
  #
  # The socket is an abstract one: a process reaches it whatever its user and its root directory. So anybody can. The
  # kernel says of each datagram which process has sent it, and only those of the worker's tree count. A process that has
  # ended before its datagram is looked at cannot be told any more; `systemd-notify` waits for that.
  #
  # There is no room for descriptors in what is received, so the kernel closes those that come. That is also what a
  # sender with a `BARRIER=1` waits for.

  use GenServer

  alias Snakepit.{Error, Guardian, Native, ProcessLabel, Run, Telemetry}
  alias Snakepit.HeartbeatMonitor.Health
  alias Snakepit.Worker.Notify.{Message, Status}

  # Longer messages are nobody's; `sd_notify` has the same limit.
  @message_bytes 4096
  # What the kernel takes for who has sent a datagram, and no more: a header and three numbers, aligned.
  @credentials_bytes 32
  # What one `EXTEND_TIMEOUT_USEC` gives at the most: ten minutes.
  @longest_extension_ms 600_000
  # How many datagrams are read before other messages are looked at.
  @batch 32

  @enforce_keys [:socket, :name, :worker, :id]
  defstruct [
    :socket,
    :name,
    :worker,
    :id,
    :child,
    :run_id,
    :watchdog_ms,
    :timer,
    # When it last said that it is alive.
    :heard_at,
    # Who waits for an address.
    :listener,
    status: %Status{},
    watching?: false
  ]

  @doc """
  Opens the socket of a worker that wants one; `nil` for any other. Nothing is read before `attach/2`.
  """
  @spec open(Snakepit.Worker.Options.t()) :: {:ok, pid() | nil} | {:error, Error.t()}
  def open(%{ready: ready, watchdog: nil, client: nil}) when ready != :notify, do: {:ok, nil}

  def open(options) do
    # Its end is told by a reason that the supervisor's report need not repeat.
    with {:error, {:shutdown, reason}} <- GenServer.start_link(__MODULE__, {self(), options}) do
      receive(do: ({:EXIT, _pid, {:shutdown, ^reason}} -> :ok), after: (0 -> :ok))
      detail = "cannot open a socket for :notify: #{Error.posix(reason)}"
      {:error, %Error{operation: :start, reason: reason, detail: detail}}
    end
  end

  @doc "Returns the variables that tell a process of the socket."
  @spec environment(pid() | nil) :: [{String.t(), String.t()}]
  def environment(nil), do: []
  def environment(notify), do: GenServer.call(notify, :environment)

  @doc "The process runs: from now on what its tree says counts."
  @spec attach(pid() | nil, Guardian.child()) :: :ok
  def attach(nil, _child), do: :ok
  def attach(notify, child), do: GenServer.cast(notify, {:attach, child})

  @doc "The worker is ready: from now on the watchdog is to hear of it in time."
  @spec watch(pid() | nil) :: :ok
  def watch(nil), do: :ok
  def watch(notify), do: GenServer.cast(notify, :watch)

  @doc "The process is being ended, and need not say anything any more."
  @spec ending(pid() | nil) :: :ok
  def ending(nil), do: :ok
  def ending(notify), do: GenServer.cast(notify, :ending)

  @doc "Returns what the process has said of itself."
  @spec status(pid()) :: Status.t()
  def status(notify), do: GenServer.call(notify, :status)

  @doc "Returns how it answers its watchdog; `nil` without one."
  @spec health(pid()) :: Health.t() | nil
  def health(notify), do: GenServer.call(notify, :health)

  @impl true
  def init({worker, options}) do
    ProcessLabel.set({__MODULE__, options.id})
    random = Base.encode16(:crypto.strong_rand_bytes(12), case: :lower)
    run_id = Run.current!().id
    name = "snakepit/#{run_id}/#{random}"

    case listen(name) do
      {:ok, socket} ->
        {:ok,
         %__MODULE__{
           socket: socket,
           name: name,
           worker: worker,
           id: options.id,
           run_id: run_id,
           watchdog_ms: options.watchdog
         }}

      {:error, reason} ->
        {:stop, {:shutdown, reason}}
    end
  end

  # Order: whoever can send can be told who it is.
  defp listen(name) do
    with {:ok, socket} <- :socket.open(:local, :dgram),
         :ok <- :socket.setopt(socket, {:socket, :passcred}, true),
         :ok <- :socket.bind(socket, %{family: :local, path: <<0, name::binary>>}),
         do: {:ok, socket}
  end

  @impl true
  def handle_call(:environment, _from, state) do
    watchdog =
      if state.watchdog_ms, do: [{"WATCHDOG_USEC", "#{state.watchdog_ms * 1_000}"}], else: []

    {:reply, [{"NOTIFY_SOCKET", "@" <> state.name} | watchdog], state}
  end

  def handle_call(:status, _from, state), do: {:reply, state.status, state}
  def handle_call(:health, _from, %{watchdog_ms: nil} = state), do: {:reply, nil, state}

  def handle_call(:health, _from, %{status: %{watchdogs: count}, heard_at: heard_at} = state) do
    ago = heard_at && now() - heard_at
    status = if count > 0, do: :healthy, else: :unknown
    {:reply, %Health{status: status, pongs_received: count, last_pong_ms_ago: ago}, state}
  end

  @impl true
  def handle_cast({:attach, child}, state), do: {:noreply, receive_some(%{state | child: child})}

  def handle_cast({:await_address, pid}, state),
    do: {:noreply, tell_address(%{state | listener: pid})}

  def handle_cast(:watch, state), do: {:noreply, restart_watchdog(%{state | watching?: true})}

  def handle_cast(:ending, state),
    do: {:noreply, %{stop_watchdog(state) | watching?: false}}

  @impl true
  def handle_info({:"$socket", socket, :select, _ref}, %{socket: socket} = state),
    do: {:noreply, receive_some(state)}

  def handle_info(:receive, state), do: {:noreply, receive_some(state)}

  def handle_info({:timeout, timer, :watchdog}, %{timer: timer} = state) do
    # It may have said so while this process had no time.
    case receive_some(%{state | timer: nil}) do
      %{timer: nil, watching?: true} = state -> give_up(state)
      state -> {:noreply, state}
    end
  end

  def handle_info(:give_up, state), do: give_up(state)
  def handle_info(_late, state), do: {:noreply, state}

  # The worker says what that means.
  defp give_up(state) do
    Telemetry.execute(
      [:snakepit, :heartbeat, :timeout],
      %{count: 1, missed_count: 1},
      %{worker_id: state.id, timeout_threshold_ms: state.watchdog_ms}
    )

    Process.exit(state.worker, :heartbeat_timeout)
    {:stop, :normal, state}
  end

  defp receive_some(state), do: receive_some(state, @batch)

  # Order: others first. A process that writes without end would keep them waiting.
  defp receive_some(state, 0) do
    send(self(), :receive)
    state
  end

  defp receive_some(state, left) do
    case :socket.recvmsg(state.socket, @message_bytes, @credentials_bytes, [], :nowait) do
      {:ok, message} -> message |> hear(state) |> receive_some(left - 1)
      {:select, _info} -> state
      # Nothing is wrong with a datagram socket for long.
      {:error, _reason} -> receive_some(state, 0)
    end
  end

  defp hear(%{iov: iov, flags: flags, ctrl: ctrl}, state) do
    with false <- :trunc in flags,
         {:ok, sender} <- sender(ctrl),
         true <- sender == state.child.os_pid or descends?(sender, state) do
      apply_all(Message.parse(IO.iodata_to_binary(iov)), state)
    else
      _too_long_or_a_stranger -> state
    end
  end

  defp sender(ctrl) do
    Enum.find_value(ctrl, :unknown, fn
      %{level: :socket, type: :credentials, data: <<pid::32-native, _user::32, _group::32>>} ->
        {:ok, pid}

      _other ->
        nil
    end)
  end

  defp descends?(os_pid, %{child: child, run_id: run_id}),
    do: Native.process_descends(os_pid, child.os_pid, run_id, child.id) == {:ok, true}

  # Order: all that is in one message is of one moment, and is told at once.
  defp apply_all(fields, state) do
    status = Status.update(state.status, fields)

    if status != state.status or fields[:ready] do
      Telemetry.execute(
        [:snakepit, :process, :notified],
        %{count: 1},
        %{
          worker_id: state.id,
          os_pid: state.child.os_pid,
          state: status.state,
          status: status.text
        }
      )
    end

    if fields[:address], do: tell_address(%{state | status: status})
    if fields[:ready], do: tell(state, :ready)
    if fields[:extend_ms], do: extend(state, fields.extend_ms)
    if fields[:watchdog] == :trigger, do: send(self(), :give_up)

    watchdog_ms = fields[:watchdog_ms] || state.watchdog_ms
    heard_at = if fields[:watchdog] == :alive, do: now(), else: state.heard_at
    state = %{state | status: status, watchdog_ms: watchdog_ms, heard_at: heard_at}

    cond do
      status.state == :stopping -> %{stop_watchdog(state) | watching?: false}
      fields[:watchdog] == :alive or fields[:watchdog_ms] -> restart_watchdog(state)
      true -> state
    end
  end

  # Not for ever at once: whoever needs longer says so again. While it starts and while a command asks it to end, the worker keeps the time; otherwise the guardian does.
  defp extend(state, timeout_ms) do
    timeout_ms = min(timeout_ms, @longest_extension_ms)
    tell(state, {:extend, timeout_ms})
    Guardian.extend(state.child, timeout_ms)
  end

  defp tell_address(%{listener: pid, status: %{address: address}} = state) do
    if pid && address, do: send(pid, {__MODULE__, self(), {:address, address}})
    state
  end

  defp tell(state, news), do: send(state.worker, {__MODULE__, self(), news})

  defp restart_watchdog(%{watching?: true, watchdog_ms: ms} = state) when ms != nil do
    state = stop_watchdog(state)
    %{state | timer: :erlang.start_timer(ms, self(), :watchdog)}
  end

  defp restart_watchdog(state), do: state

  defp stop_watchdog(%{timer: nil} = state), do: state

  defp stop_watchdog(state) do
    :erlang.cancel_timer(state.timer)
    %{state | timer: nil}
  end

  defp now, do: System.monotonic_time(:millisecond)
end
