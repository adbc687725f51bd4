defmodule Snakepit.GRPC.Messages do
  @moduledoc false

  # The messages of `priv/proto/snakepit.proto` and of `grpc.health.v1`.

  alias Snakepit.Error
  alias Snakepit.GRPC.{Status, Value, Wire}

  @health "/grpc.health.v1.Health/Check"
  @ping "/snakepit.Heartbeat/Ping"
  @execute "/snakepit.Commands/Execute"
  @execute_stream "/snakepit.Commands/ExecuteStream"

  # The names of `grpc.health.v1.HealthCheckResponse.ServingStatus`.
  @serving {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

  def health_path, do: @health
  def ping_path, do: @ping
  def execute_path, do: @execute
  def execute_stream_path, do: @execute_stream

  @doc "Returns `:ok` if a server says that it serves, or what it says instead."
  @spec health(binary()) :: :ok | {:error, String.t()}
  def health(answer) do
    case fields(answer) do
      [{1, 1}] -> :ok
      [{1, number}] when number in [0, 2, 3] -> {:error, elem(@serving, number)}
      [] -> {:error, elem(@serving, 0)}
      _malformed -> {:error, "something that is no answer"}
    end
  end

  @doc "Returns a ping, and whether an answer is its pong."
  @spec ping(integer()) :: {iodata(), (binary() -> boolean())}
  def ping(now) do
    pong? = fn answer ->
      case fields(answer) do
        [{1, text}] when is_binary(text) -> String.starts_with?(text, "PONG:#{now}:")
        _other -> false
      end
    end

    {Wire.bytes(1, "PING:#{now}"), pong?}
  end

  @doc "Returns a request for a command, or which part of its arguments cannot be carried."
  @spec execute(String.t(), map(), String.t() | nil) :: {:ok, binary()} | {:error, Error.t()}
  def execute(command, arguments, session_id) do
    case Value.encode_map(arguments, "the argument") do
      {:ok, map} ->
        session = if session_id, do: Wire.bytes(3, session_id), else: []
        {:ok, IO.iodata_to_binary([Wire.bytes(1, command), Wire.bytes(2, map), session])}

      {:error, detail} ->
        Status.error(:execute, :einval, detail)
    end
  end

  @doc "Returns what a command has returned, or how it has failed."
  @spec reply(String.t(), binary()) :: {:ok, term()} | {:error, Error.t()}
  def reply(command, answer) do
    with [{number, content}] when is_binary(content) <- fields(answer),
         {:ok, result} <- outcome(number, content, command) do
      result
    else
      _malformed ->
        Status.error(
          :execute,
          :internal,
          "the server's answer to #{inspect(command)} is no reply"
        )
    end
  end

  defp outcome(1, value, _command),
    do: with({:ok, term} <- Value.decode(value), do: {:ok, {:ok, term}})

  defp outcome(2, failure, command) do
    with fields when is_list(fields) <- fields(failure), do: {:ok, failure(command, fields)}
  end

  defp outcome(_number, _content, _command), do: :error

  defp failure(command, fields) do
    [type, message, traceback] = for number <- 1..3, do: text(fields, number)

    detail =
      "#{inspect(command)} raised #{type}: #{message}" <>
        if(traceback == "", do: "", else: "\n" <> String.trim_trailing(traceback))

    Status.error(:execute, :exception, detail)
  end

  defp text(fields, number) do
    case List.keyfind(fields, number, 0) do
      {_number, text} when is_binary(text) -> Snakepit.Output.Tail.text(text)
      _none -> ""
    end
  end

  defp fields(message) do
    Wire.fields!(message)
  catch
    :malformed -> :malformed
  end
end
