defmodule MyApp.MCP do
  @moduledoc """
  A client of a server of the Model Context Protocol, or of any other that speaks JSON-RPC in lines.

      children = [{MyApp.MCP, name: MyApp.Files, cmd: ["npx", "-y", "some-mcp-server"]}]

  """

  use GenServer

  @client %{name: "my_app", version: "1.0.0"}
  @version "2025-06-18"

  def start_link(options),
    do: GenServer.start_link(__MODULE__, options, Keyword.take(options, [:name]))

  @doc "Calls a method and returns `{:ok, result}` or `{:error, error}`."
  def call(client, method, params, timeout \\ 30_000),
    do: GenServer.call(client, {:call, method, params}, timeout)

  @impl true
  def init(options) do
    # The server is linked to this process: they end together, and a supervisor starts both again.
    {:ok, server} =
      Snakepit.Worker.start_link(
        cmd: Keyword.fetch!(options, :cmd),
        stdio: :pipe,
        packet: :line,
        output: {:send, self()},
        stderr: :tail,
        max_packet: 16 * 1024 * 1024
      )

    state = %{server: server, last: 0, waiting: %{}}
    {:ok, state, {:continue, :initialize}}
  end

  @impl true
  def handle_continue(:initialize, state) do
    params = %{protocolVersion: @version, capabilities: %{}, clientInfo: @client}
    {:noreply, request(state, "initialize", params, :initialize)}
  end

  @impl true
  def handle_call({:call, method, params}, from, state),
    do: {:noreply, request(state, method, params, from)}

  @impl true
  def handle_info({Snakepit.Worker, _id, {:output, line}}, state),
    do: {:noreply, heard(JSON.decode!(line), state)}

  # The end of its output; its end follows.
  def handle_info({Snakepit.Worker, _id, :eof}, state), do: {:noreply, state}

  defp request(state, method, params, from) do
    id = state.last + 1
    say(state, %{id: id, method: method, params: params})
    %{state | last: id, waiting: Map.put(state.waiting, id, from)}
  end

  defp say(state, message) do
    line = [JSON.encode!(Map.put(message, :jsonrpc, "2.0")), "\n"]
    :ok = Snakepit.Worker.write(state.server, line)
  end

  # An answer has the id of a request of ours, and may come in any order.
  defp heard(%{"id" => id} = message, state) when not is_map_key(message, "method") do
    {from, waiting} = Map.pop(state.waiting, id)
    answer(from, message, state)
    %{state | waiting: waiting}
  end

  # The server asks for something that this client has not promised.
  defp heard(%{"id" => id, "method" => _method}, state) do
    say(state, %{id: id, error: %{code: -32_601, message: "method not found"}})
    state
  end

  # A notification: progress, a line of its log.
  defp heard(%{"method" => _method}, state), do: state

  defp answer(:initialize, %{"result" => _server}, state),
    do: say(state, %{method: "notifications/initialized"})

  defp answer(nil, _message, _state), do: :ok
  defp answer(from, %{"result" => result}, _state), do: GenServer.reply(from, {:ok, result})
  defp answer(from, %{"error" => error}, _state), do: GenServer.reply(from, {:error, error})
end
