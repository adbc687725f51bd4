defmodule Snakepit.GRPCWorker.Client do
  @moduledoc """
  How a `Snakepit.GRPCWorker` talks to its server.

    * `Snakepit.GRPCWorker.Client.HTTP2` - Snakepit's own, which needs nothing; the default
    * `Snakepit.GRPCWorker.Client.Stub` - `GRPC.Stub` of the package `grpc`, for applications that have it

  Messages are bytes here, in the form that Protocol Buffers have on the wire.
  """

  alias Snakepit.Error

  @typedoc "A connection."
  @type channel :: term()

  @typedoc """
  `:timeout` is that of the call, `:max_message` the longest message in bytes, `:metadata` a list of pairs of texts.
  """
  @type call_opts :: %{
          timeout: timeout(),
          max_message: pos_integer(),
          metadata: [{String.t(), String.t()}]
        }

  @doc """
  Connects to an address, as `127.0.0.1:50051` or `unix:/path`, with the options of the worker's `:client`.

  The pid is that of a process that ends with the connection, which is then made again. It must not be linked to the
  caller, and should end with it. `nil` if the channel connects again by itself.
  """
  @callback connect(address :: String.t(), opts :: keyword()) ::
              {:ok, channel(), pid() | nil} | {:error, Error.t()}

  @doc """
  Calls a method that answers with one message.

  An error with the reason `:worker_down` says that the connection was lost; with the step `:connect` too, that the
  request was not sent.
  """
  @callback call(channel(), path :: String.t(), message :: binary(), call_opts()) ::
              {:ok, binary()} | {:error, Error.t()}

  @doc """
  Returns the messages of a method that answers with many, lazily: each as `{:ok, message}`, and at the end perhaps
  an error. Abandoning it should cancel the call.
  """
  @callback stream(channel(), path :: String.t(), message :: binary(), call_opts()) ::
              Enumerable.t()

  @doc "Closes a connection."
  @callback close(channel()) :: :ok
end
