defmodule Snakepit.GRPC.Connection do
  @moduledoc false

  # One connection to a gRPC server, by HTTP/2 without TLS, as a process: the socket, the callers and their deadlines,
  # around what `HTTP2` and `Call` decide. It ends when the connection does, and those who wait are told. It does not
  # connect again: `Snakepit.GRPCWorker.Link` does.
  #
  # It never blocks: it reads when there is something, and a `Writer` writes. So callers wait for it without a timeout,
  # and it keeps their deadlines.

  use GenServer

  alias Snakepit.{Error, ProcessLabel}
  alias Snakepit.GRPC.{Address, Call, HTTP2, Status, Writer}

  @connect_timeout 5_000
  # What arrives when the server has ended is there at once.
  @last_words_ms 1_000

  @enforce_keys [:socket, :owner, :writer, :http2, :authority]
  defstruct [
    :socket,
    # A monitor.
    :owner,
    :writer,
    :http2,
    :authority,
    # Calls by their streams, and the streams by the monitors of their callers.
    calls: %{},
    ids: %{}
  ]

  @type opts :: %{
          timeout: timeout(),
          max_message: pos_integer(),
          metadata: [Snakepit.GRPC.HPACK.header()]
        }

  @doc "Connects to a server, or returns why it cannot be reached. The connection ends with `owner`."
  @spec start(Address.t(), pid()) :: {:ok, pid()} | {:error, Error.t()}
  def start(address, owner) do
    with {:error, {:shutdown, %Error{} = error}} <- GenServer.start(__MODULE__, {address, owner}),
         do: {:error, error}
  end

  @doc "Ends a connection. Calls that are under way fail."
  @spec close(pid()) :: :ok
  def close(connection), do: GenServer.cast(connection, :close)

  @doc "Sends a message to a method and returns the answer."
  @spec call(pid(), String.t(), binary(), opts()) :: {:ok, binary()} | {:error, Error.t()}
  def call(connection, path, message, opts),
    do: ask(connection, {:open, :unary, path, message, opts})

  @doc "Sends a message to a method that answers with many. Returns what `next/2` and `cancel/2` take."
  @spec open_stream(pid(), String.t(), binary(), opts()) ::
          {:ok, reference()} | {:error, Error.t()}
  def open_stream(connection, path, message, opts),
    do: ask(connection, {:open, :stream, path, message, opts})

  @doc "Returns the next message. Until it is asked for, the server can send no more than a window."
  @spec next(pid(), reference()) :: {:ok, binary()} | :done | {:error, Error.t()}
  def next(connection, stream), do: ask(connection, {:next, stream})

  @doc "Ends a stream, unless it has ended."
  @spec cancel(pid(), reference()) :: :ok
  def cancel(connection, stream), do: GenServer.cast(connection, {:cancel, stream})

  defp ask(connection, request) do
    GenServer.call(connection, request, :infinity)
  catch
    :exit, {reason, _call} -> {:error, lost(reason)}
  end

  defp lost({:shutdown, %Error{} = error}), do: error
  # The request was not looked at.
  defp lost(:noproc), do: %{lost(:gone) | step: :connect}

  defp lost(_reason) do
    {:error, error} = Status.error(:grpc, :worker_down, "the connection to the server was closed")
    error
  end

  @impl true
  def init({address, owner}) do
    # Of its writer.
    Process.flag(:trap_exit, true)
    owner = Process.monitor(owner)
    ProcessLabel.set({__MODULE__, address})

    with {:ok, host, port} <- Address.parse(address),
         {:ok, socket} <- :gen_tcp.connect(host, port, options(address, host), @connect_timeout),
         state = new(socket, owner, address),
         {:ok, state} <- greet(state) do
      {:ok, state}
    else
      {:error, %Error{} = error} -> {:stop, {:shutdown, error}}
      {:error, reason} -> {:stop, {:shutdown, unreachable(address, reason)}}
    end
  end

  # A local socket cannot be told not to wait for more.
  defp options(address, host) do
    nodelay = if Address.local?(address), do: [], else: [nodelay: true]
    [:binary, active: false] ++ nodelay ++ family(host)
  end

  defp family(host) when tuple_size(host) == 8, do: [:inet6]
  defp family(_host), do: []

  defp new(socket, owner, address) do
    %__MODULE__{
      socket: socket,
      owner: owner,
      writer: Writer.start_link(socket),
      http2: HTTP2.new(),
      authority: Address.authority(address)
    }
  end

  # Whoever accepts connections need not speak HTTP/2. A server that does says its settings first.
  defp greet(state) do
    {out, http2} = HTTP2.take_out(state.http2)
    :ok = Writer.write(state.writer, out)

    with {:ok, bytes} <- :gen_tcp.recv(state.socket, 0, @connect_timeout),
         {:ok, [], http2} <- HTTP2.receive(http2, bytes),
         {:noreply, state} <- flush(%{state | http2: http2}) do
      :inet.setopts(state.socket, active: :once)
      {:ok, state}
    else
      {:error, text, _events, _http2} -> Status.error(:grpc, :internal, no_http2(text))
      {:stop, {:shutdown, error}, _state} -> {:error, error}
      {:error, reason} -> {:error, reason}
    end
  end

  defp unreachable(address, reason) do
    {:error, error} =
      Status.error(:grpc, reason, "cannot connect to #{address}: #{Error.posix(reason)}")

    error
  end

  defp no_http2(text), do: "the server does not speak HTTP/2 as it should: #{text}"

  @impl true
  def handle_call({:open, kind, path, message, opts}, from, state) do
    headers = Call.headers(path, state.authority, opts.timeout, opts.metadata)

    with :ok <- check_size(message, opts.max_message),
         {:ok, id, http2} <- HTTP2.open(state.http2, headers, Call.body(message)) do
      state |> enter(id, kind, from, opts, http2) |> flush()
    else
      {:error, %Error{}} = error -> {:reply, error, state}
      {:error, why} -> {:reply, refused(why), state}
    end
  end

  def handle_call({:next, stream}, from, state) do
    case state.ids do
      %{^stream => id} -> state |> tell(id, %{state.calls[id] | waiting: from}) |> flush()
      _ended -> {:reply, :done, state}
    end
  end

  @impl true
  def handle_cast(:close, state), do: {:stop, {:shutdown, :closed}, state}
  def handle_cast({:cancel, stream}, state), do: state |> leave(stream) |> flush()

  @impl true
  def handle_info({:tcp, socket, bytes}, %{socket: socket} = state) do
    case HTTP2.receive(state.http2, bytes) do
      {:ok, events, http2} ->
        :inet.setopts(socket, active: :once)
        events |> Enum.reduce(%{state | http2: http2}, &hear/2) |> flush()

      {:error, text, events, http2} ->
        state = Enum.reduce(events, %{state | http2: http2}, &hear/2)
        stop(:internal, no_http2(text), state)
    end
  end

  def handle_info({:tcp_closed, _socket}, state),
    do: stop(:worker_down, "the server has closed the connection", state)

  def handle_info({:tcp_error, _socket, reason}, state), do: broken(reason, state)

  def handle_info({:EXIT, pid, {:shutdown, reason}}, %{writer: %{pid: pid}} = state),
    do: broken(reason, state)

  def handle_info({:EXIT, pid, reason}, %{writer: %{pid: pid}} = state),
    do: {:stop, reason, state}

  def handle_info({:timeout, _timer, stream}, state) do
    case state.ids do
      %{^stream => id} -> state |> expire(id) |> flush()
      _ended -> {:noreply, state}
    end
  end

  # The server has ended, or is about to. What it has answered before may still be on its way, and then comes the end.
  def handle_info({:DOWN, owner, :process, _pid, _reason}, %{owner: owner} = state) do
    Process.send_after(self(), :close, @last_words_ms)
    flush(%{state | owner: nil})
  end

  def handle_info(:close, state), do: {:stop, {:shutdown, :closed}, state}

  def handle_info({:DOWN, stream, :process, _pid, _reason}, state),
    do: state |> leave(stream) |> flush()

  def handle_info(_late, state), do: {:noreply, state}

  @impl true
  def terminate(reason, state) do
    for {_id, %{waiting: from}} when from != nil <- state.calls,
        do: GenServer.reply(from, {:error, lost(reason)})
  end

  defp check_size(message, most) when byte_size(message) <= most, do: :ok

  defp check_size(message, most) do
    size = byte_size(message)

    Status.error(
      :grpc,
      :emsgsize,
      "the message of #{size} bytes is longer than the :max_message of #{most}"
    )
  end

  defp refused(:full),
    do: Status.error(:grpc, :busy, "the server takes no more calls at a time over one connection")

  defp refused(:leaving),
    do: Status.error(:grpc, :unavailable, "the server is shutting down and takes no more calls")

  # Whoever opens a stream has it at once, and asks for its messages.
  defp enter(state, id, kind, {pid, _tag} = from, opts, http2) do
    monitor = Process.monitor(pid)
    if kind == :stream, do: GenServer.reply(from, {:ok, monitor})

    call = %Call{
      kind: kind,
      max_message: opts.max_message,
      monitor: monitor,
      waiting: if(kind == :unary, do: from),
      timer: opts.timeout != :infinity && :erlang.start_timer(opts.timeout, self(), monitor)
    }

    calls = Map.put(state.calls, id, call)
    %{state | http2: http2, calls: calls, ids: Map.put(state.ids, monitor, id)}
  end

  # Of one that has ended meanwhile, as its caller has left, there may be an event in the same batch.
  defp hear(event, state) do
    id = elem(event, 1)

    case state.calls do
      %{^id => call} -> tell(state, id, Call.hear(call, event))
      _ended -> state
    end
  end

  defp tell(state, id, %{waiting: nil} = call), do: put(state, id, call)

  defp tell(state, id, %{waiting: from} = call) do
    {answer, consumed, call} = Call.take(call)
    state = %{state | http2: HTTP2.consume(state.http2, id, consumed)}
    if answer != :wait, do: GenServer.reply(from, answer)

    cond do
      answer == :wait ->
        put(state, id, call)

      call.kind == :stream and match?({:ok, _message}, answer) ->
        put(state, id, %{call | waiting: nil})

      true ->
        leave(state, call.monitor)
    end
  end

  defp put(state, id, call), do: %{state | calls: Map.put(state.calls, id, call)}

  # Order: the server is told at once. Messages that have come are still to be had, if they are a stream's.
  defp expire(state, id) do
    state = %{state | http2: HTTP2.cancel(state.http2, id)}
    error = Status.error(:grpc, :timeout, "the server did not answer in time")
    tell(state, id, Call.fail(state.calls[id], error))
  end

  defp leave(state, monitor) do
    case Map.pop(state.ids, monitor) do
      {nil, _ids} ->
        state

      {id, ids} ->
        {call, calls} = Map.pop(state.calls, id)
        Process.demonitor(monitor, [:flush])
        if call.timer, do: :erlang.cancel_timer(call.timer)
        %{state | http2: HTTP2.cancel(state.http2, id), calls: calls, ids: ids}
    end
  end

  defp flush(state) do
    {out, http2} = HTTP2.take_out(state.http2)
    state = %{state | http2: http2}

    case Writer.write(state.writer, out) do
      :ok when state.owner == nil and state.calls == %{} ->
        {:stop, {:shutdown, :closed}, state}

      :ok when http2.leaving? and state.calls == %{} ->
        stop(:unavailable, "the server is shutting down and takes no more calls", state)

      :ok ->
        {:noreply, state}

      {:error, :enobufs} ->
        stop(:worker_down, "the server does not read what is sent to it", state)
    end
  end

  defp broken(reason, state),
    do: stop(:worker_down, "the connection to the server was lost: #{Error.posix(reason)}", state)

  defp stop(reason, detail, state) do
    {:error, error} = Status.error(:grpc, reason, detail)
    {:stop, {:shutdown, error}, state}
  end
end
