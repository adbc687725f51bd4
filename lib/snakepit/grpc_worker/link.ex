defmodule Snakepit.GRPCWorker.Link do
  @moduledoc false

  # Between a worker and its gRPC server: learns the address, connects, asks the server's health service until it serves,
  # and connects again when the connection is lost while the process lives. It hands out the channel and makes no calls
  # for others, so nobody waits for anybody else's.
  #
  # It does not trap exits: when the worker ends it, it may be in the middle of a question to a server that hangs.

  use GenServer

  alias Snakepit.{Error, ProcessLabel}
  alias Snakepit.GRPC.Messages
  alias Snakepit.Worker.{Client, Notify}

  @behaviour Client

  # Nothing tells when a server begins to serve. The longer it has taken, the less often it is asked.
  @ask_again_ms 20
  @ask_again_at_most_ms 1_000
  # One that does not answer is asked again after this.
  @health_timeout_ms 1_000
  # A ping that takes longer is a miss, whatever the options of the heartbeat.
  @ping_timeout_ms 60_000
  @pending_timeout_ms 2 * @health_timeout_ms

  @enforce_keys [:info, :client, :client_opts, :max_message]
  defstruct [
    :info,
    :client,
    :client_opts,
    :max_message,
    :address,
    # A channel and the monitor of its connection. `serving?` when the server's health service has said so.
    :channel,
    :connection,
    serving?: false,
    told?: false,
    pending: "it has not announced its address",
    # Until it is asked again, and how often it was.
    timer: nil,
    tries: 0,
    # Those who wait for a channel, and until when.
    waiting: []
  ]

  @typedoc "The client, its channel, and the longest message that the worker allows."
  @type link :: %{
          client: module(),
          channel: Snakepit.GRPCWorker.Client.channel(),
          max_message: pos_integer()
        }

  @impl Client
  def start_link(info, opts), do: GenServer.start_link(__MODULE__, {info, opts})

  @doc "Returns the client and its channel, as soon as the server serves."
  @spec channel(pid(), timeout()) :: {:ok, link()} | {:error, Error.t()}
  def channel(link, timeout) do
    GenServer.call(link, {:channel, deadline(timeout)}, timeout)
  catch
    :exit, {:timeout, _call} ->
      {:error, error(:timeout, "the server could not be reached in time")}

    :exit, {_reason, _call} ->
      {:error, error(:worker_down, "the server has ended")}
  end

  defp error(reason, detail),
    do: %Error{operation: :grpc, reason: reason, step: :connect, detail: detail}

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: now() + timeout

  @doc "Returns where the server serves."
  @spec address(pid()) :: {:ok, String.t()} | {:error, Error.t()}
  def address(link) do
    with {:ok, _channel} <- channel(link, 60_000), do: GenServer.call(link, :address)
  end

  # An answer of any kind is a sign of life. Servers of others may have no such method.
  @impl Client
  def ping(link) do
    {message, pong?} = Messages.ping(System.os_time(:millisecond))

    with {:ok, %{client: client, channel: channel}} <- channel(link, @ping_timeout_ms) do
      case client.call(
             channel,
             Messages.ping_path(),
             IO.iodata_to_binary(message),
             opts(@ping_timeout_ms)
           ) do
        {:ok, answer} -> pong?.(answer)
        {:error, %Error{reason: :unimplemented}} -> true
        {:error, _error} -> false
      end
    end
  end

  @impl Client
  def pending(link) do
    GenServer.call(link, :pending, @pending_timeout_ms)
  catch
    :exit, _reason -> "its health service does not answer"
  end

  @impl GenServer
  def init({info, opts}) do
    ProcessLabel.set({Snakepit.GRPCWorker, info.worker_id})
    {client, client_opts} = opts.client

    state = %__MODULE__{
      info: info,
      client: client,
      client_opts: client_opts,
      max_message: opts.max_message,
      address: opts.address
    }

    if opts.address, do: send(self(), :go_on), else: Client.await_address(info.notify)
    {:ok, state}
  end

  @impl GenServer
  def handle_call({:channel, _deadline}, _from, %{serving?: true} = state),
    do: {:reply, {:ok, link(state)}, state}

  def handle_call({:channel, deadline}, from, state) do
    # Those who have given up are forgotten now and then.
    waiting = for {_from, until} = one <- state.waiting, until > now(), do: one
    {:noreply, %{state | waiting: [{from, deadline} | waiting]}}
  end

  def handle_call(:address, _from, state), do: {:reply, {:ok, state.address}, state}
  def handle_call(:pending, _from, state), do: {:reply, state.pending, state}

  @impl GenServer
  def handle_info({Notify, notify, {:address, address}}, %{info: %{notify: notify}} = state),
    do: {:noreply, moved(state, address)}

  def handle_info(:go_on, state), do: {:noreply, go_on(%{state | timer: nil})}

  def handle_info({:DOWN, monitor, :process, _pid, reason}, %{connection: monitor} = state) do
    state = %{state | channel: nil, connection: nil, serving?: false}
    {:noreply, later(state, lost(reason))}
  end

  # What clients of others leave behind.
  def handle_info(_other, state), do: {:noreply, state}

  defp lost({:shutdown, %Error{} = error}), do: Error.cause(error)
  defp lost(_reason), do: "the connection to it was lost"

  defp moved(%{address: address} = state, address), do: state

  defp moved(state, address) do
    if state.connection, do: Process.demonitor(state.connection, [:flush])
    if state.channel, do: state.client.close(state.channel)

    go_on(%{state | address: address, channel: nil, connection: nil, serving?: false})
  end

  defp go_on(%{serving?: true} = state), do: state

  defp go_on(%{channel: nil} = state) do
    case attempt(fn -> state.client.connect(state.address, state.client_opts) end) do
      {:ok, channel, pid} ->
        connection = pid && Process.monitor(pid)
        pending = "its health service does not answer"
        go_on(%{state | channel: channel, connection: connection, pending: pending})

      {:error, error} ->
        later(state, Error.cause(error))
    end
  end

  defp go_on(state) do
    ask = fn ->
      state.client.call(state.channel, Messages.health_path(), "", opts(@health_timeout_ms))
    end

    case attempt(ask) do
      {:ok, answer} ->
        case Messages.health(answer) do
          :ok -> serve(state)
          {:error, text} -> later(state, "its health service says #{text}")
        end

      # What has become of the connection is about to be told.
      {:error, %Error{step: :connect}} ->
        later(state, state.pending)

      {:error, error} ->
        later(state, "its health service does not answer: #{Error.cause(error)}")
    end
  end

  # A client of somebody else's may raise, or exit with a process of its own.
  defp attempt(fun) do
    fun.()
  catch
    kind, reason ->
      detail = "its client failed: #{Exception.format_banner(kind, reason, __STACKTRACE__)}"
      {:error, %Error{operation: :grpc, reason: :internal, detail: detail}}
  end

  defp later(state, pending) do
    tries = state.tries + 1
    delay = min(tries * @ask_again_ms, @ask_again_at_most_ms)
    timer = state.timer || Process.send_after(self(), :go_on, delay)
    %{state | pending: pending, timer: timer, tries: tries}
  end

  defp serve(state) do
    unless state.told?, do: Client.ready(state.info.worker)
    for {from, _until} <- state.waiting, do: GenServer.reply(from, {:ok, link(state)})
    %{state | serving?: true, told?: true, waiting: [], tries: 0}
  end

  defp link(state), do: Map.take(state, [:client, :channel, :max_message])

  defp opts(timeout), do: %{timeout: timeout, max_message: 65_536, metadata: []}

  defp now, do: System.monotonic_time(:millisecond)
end
