defmodule Snakepit.GRPC.Status do
  @moduledoc false

  # How calls end: the codes of gRPC, as errors.

  alias Snakepit.Error

  # In the order of their numbers. A deadline is a timeout like any other.
  @reasons {
    :ok,
    :cancelled,
    :unknown,
    :invalid_argument,
    :timeout,
    :not_found,
    :already_exists,
    :permission_denied,
    :resource_exhausted,
    :failed_precondition,
    :aborted,
    :out_of_range,
    :unimplemented,
    :internal,
    :unavailable,
    :data_loss,
    :unauthenticated
  }

  # What the end of a stream without a status means, by the codes of HTTP/2.
  @resets %{0x7 => 14, 0x8 => 1, 0xB => 8, 0xC => 7}

  @doc "Returns `:ok`, or the error that the number of a status means, with the server's words."
  @spec result(atom(), non_neg_integer(), String.t()) :: :ok | {:error, Error.t()}
  def result(_operation, 0, _text), do: :ok

  def result(operation, number, text) do
    reason = if number < tuple_size(@reasons), do: elem(@reasons, number), else: :unknown

    error(
      operation,
      reason,
      "the server answered with the gRPC status #{number} (#{reason})" <> words(text)
    )
  end

  defp words(""), do: ""
  defp words(text), do: ": " <> text

  @doc "Returns what the last headers of an answer say."
  @spec from_trailers(atom(), [Snakepit.GRPC.HPACK.header()]) :: :ok | {:error, Error.t()}
  def from_trailers(operation, headers) do
    with {"grpc-status", number} <- List.keyfind(headers, "grpc-status", 0),
         {number, ""} when number >= 0 <- Integer.parse(number) do
      {_name, text} = List.keyfind(headers, "grpc-message", 0, {"", ""})
      result(operation, number, unescape(text))
    else
      _none -> from_http(operation, List.keyfind(headers, ":status", 0))
    end
  end

  defp from_http(operation, {":status", status}) when status != "200",
    do:
      error(
        operation,
        :unavailable,
        "the server answered with the HTTP status #{status}: it speaks no gRPC there"
      )

  defp from_http(operation, _none),
    do: error(operation, :internal, "the server ended its answer without a gRPC status")

  @doc "Returns the error of a stream that the server has ended with a code of HTTP/2."
  @spec from_reset(atom(), non_neg_integer()) :: {:error, Error.t()}
  def from_reset(operation, code) do
    reason = elem(@reasons, Map.get(@resets, code, 13))
    error(operation, reason, "the server cancelled the call (code #{code} of HTTP/2)")
  end

  @doc "Returns an error."
  @spec error(atom(), atom(), String.t()) :: {:error, Error.t()}
  def error(operation, reason, detail),
    do: {:error, %Error{operation: operation, reason: reason, detail: detail}}

  # As in a URL. What is no text is shown as it is in logs.
  defp unescape(text) do
    text =
      Regex.replace(~r/%([0-9A-Fa-f]{2})/, text, fn _all, hex ->
        Base.decode16!(hex, case: :mixed)
      end)

    Snakepit.Output.Tail.text(text)
  end
end
