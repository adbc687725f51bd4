defmodule Snakepit.GRPCWorker.Client.Stub do
  @moduledoc """
  The client of the package `grpc` (`GRPC.Stub`), for applications that have it among their dependencies:

      {Snakepit.GRPCWorker,
       cmd: ["python3", "server.py"],
       client: {Snakepit.GRPCWorker.Client.Stub, adapter: GRPC.Client.Adapters.Mint}}

  Its options are those of `GRPC.Stub.connect/2`. `Snakepit.GRPCWorker.channel/1` returns the `GRPC.Channel`, for the
  stubs that are generated from your own `.proto`. Snakepit is compiled without the package, and calls it by name. It was
  tried with version 1.0.2 of the package and its adapter for Mint; no test of Snakepit has it.

  `GRPC.Stub` cannot cancel a stream of answers that is abandoned: the server goes on to send. It has no limit on what it
  receives, so `:max_message` holds for the server alone. And with Mint it did not connect to Unix sockets: use a port.
  """

  @behaviour Snakepit.GRPCWorker.Client

  alias Snakepit.{Error, GRPC}
  alias Snakepit.GRPC.Status

  # Its modules, which need not be there.
  @stub Module.concat(["GRPC", "Stub"])
  @stream Module.concat(["GRPC", "Client", "Stream"])

  defmodule Bytes do
    @moduledoc false

    # A codec that leaves messages as they are.

    def name, do: "proto"
    def encode(bytes, _opts \\ []), do: bytes
    def decode(bytes, _module), do: bytes
  end

  @impl true
  def connect(address, opts) do
    if Code.ensure_loaded?(@stub) do
      case apply(@stub, :connect, [target(address), opts]) do
        {:ok, channel} ->
          {:ok, channel, connection(channel)}

        {:error, reason} ->
          Status.error(:grpc, :unavailable, "cannot connect to #{address}: #{inspect(reason)}")
      end
    else
      Status.error(
        :grpc,
        :enoent,
        "the package grpc is not among the dependencies of this application"
      )
    end
  end

  # An address without a scheme would be looked up in the DNS.
  defp target(address),
    do: if(GRPC.Address.local?(address), do: address, else: "ipv4:" <> address)

  defp connection(%{adapter_payload: %{conn_pid: pid}}) when is_pid(pid), do: pid
  defp connection(_channel), do: nil

  @impl true
  def call(channel, path, message, opts), do: request(channel, path, message, false, opts)

  @impl true
  def stream(channel, path, message, opts) do
    Stream.resource(
      fn -> request(channel, path, message, true, opts) end,
      fn
        {:ok, messages} -> {Stream.map(messages, &answer/1), :ended}
        {:error, error} -> {[{:error, error}], :ended}
        :ended -> {:halt, :ended}
      end,
      fn _ended -> :ok end
    )
  end

  defp request(channel, path, message, stream?, opts) do
    ["", service, method] = String.split(path, "/")

    fields = [
      channel: channel,
      service_name: service,
      method_name: method,
      grpc_type: if(stream?, do: :server_stream, else: :unary),
      path: path,
      server_stream: stream?
    ]

    rpc = {method, {nil, false}, {nil, stream?}, %{}}

    options = [
      timeout: opts.timeout,
      metadata: Map.new(opts.metadata),
      codec: Bytes
    ]

    @stub |> apply(:call, [nil, rpc, struct(@stream, fields), message, options]) |> answer()
  end

  defp answer({:error, %{status: number, message: text}}) when is_integer(number),
    do: Status.result(:grpc, number, to_string(text))

  defp answer({:error, reason}),
    do: {:error, %Error{operation: :grpc, reason: :worker_down, detail: inspect(reason)}}

  defp answer(ok), do: ok

  @impl true
  def close(channel) do
    apply(@stub, :disconnect, [channel])
    :ok
  end
end
