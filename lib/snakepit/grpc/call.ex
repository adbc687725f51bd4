defmodule Snakepit.GRPC.Call do
  @moduledoc false

  # One call, as its answer arrives: data is put together to messages, which wait until they are asked for. A connection
  # has a call for each stream.

  alias Snakepit.GRPC.{HPACK, Status}

  # Before each message: whether it is compressed, and its length.
  @prefix 5

  @enforce_keys [:kind, :max_message]
  defstruct [
    # `:unary` or `:stream`.
    :kind,
    :max_message,
    # Who waits for an answer, or for the next message of one, as for `GenServer.reply/2`.
    :waiting,
    # Of the caller, and of the deadline.
    :monitor,
    :timer,
    # Whether headers have come, and data may.
    begun?: false,
    # The beginning of a message, how long it is, and how many bytes are needed to go on.
    parts: [],
    held: 0,
    needed: @prefix,
    messages: :queue.new(),
    # How many bytes the server is not yet allowed to send again.
    unconsumed: 0,
    # `:ok` or an error when the answer is complete.
    result: nil
  ]

  @type t :: %__MODULE__{}

  @doc "Returns the headers of the request."
  @spec headers(String.t(), String.t(), timeout(), [HPACK.header()]) :: [HPACK.header()]
  def headers(path, authority, timeout, metadata) do
    [
      {":method", "POST"},
      {":scheme", "http"},
      {":path", path},
      {":authority", authority},
      {"te", "trailers"},
      {"content-type", "application/grpc"},
      {"user-agent", "snakepit"}
    ] ++ deadline(timeout) ++ metadata
  end

  defp deadline(:infinity), do: []
  # Eight digits are all that there may be.
  defp deadline(timeout) when timeout <= 99_999_999, do: [{"grpc-timeout", "#{timeout}m"}]
  defp deadline(timeout), do: [{"grpc-timeout", "#{div(timeout, 1_000)}S"}]

  @doc "Returns the body of the request."
  @spec body(binary()) :: binary()
  def body(message), do: <<0, byte_size(message)::32, message::binary>>

  @doc "Takes an event of its stream."
  @spec hear(t(), Snakepit.GRPC.HTTP2.event()) :: t()
  def hear(%{result: nil} = call, {:headers, _id, headers, last?}) do
    cond do
      last? ->
        finish(call, Status.from_trailers(:grpc, headers))

      List.keyfind(headers, ":status", 0) != {":status", "200"} ->
        finish(call, Status.from_trailers(:grpc, headers))

      true ->
        %{call | begun?: true}
    end
  end

  def hear(%{result: nil} = call, {:data, _id, data, counted, last?}) do
    call = %{call | unconsumed: call.unconsumed + counted}
    call = if call.begun?, do: add(call, data), else: finish(call, cut())
    if last? and call.result == nil, do: finish(call, cut()), else: call
  end

  def hear(%{result: nil} = call, {:reset, _id, code}),
    do: finish(call, Status.from_reset(:grpc, code))

  def hear(%{result: nil} = call, {:refused, _id}),
    do:
      finish(
        call,
        Status.error(
          :grpc,
          :unavailable,
          "the server is shutting down and has not begun the call"
        )
      )

  def hear(call, _late), do: call

  defp cut,
    do: Status.error(:grpc, :internal, "the server ended its answer without a gRPC status")

  # Whole messages before an error are still to be had.
  defp finish(call, result) do
    result =
      if result == :ok and call.held > 0,
        do: Status.error(:grpc, :internal, "the answer ended in the middle of a message"),
        else: result

    %{call | result: result, parts: [], held: 0}
  end

  # Parts are joined when what is needed is there: a message of megabytes comes in thousands of them.
  defp add(call, data),
    do: cut_messages(%{call | parts: [call.parts | data], held: call.held + byte_size(data)})

  defp cut_messages(%{held: held, needed: needed} = call) when held < needed, do: call

  defp cut_messages(%{max_message: most} = call) do
    case IO.iodata_to_binary(call.parts) do
      <<0, length::32, _rest::binary>> when length > most ->
        refuse(
          call,
          :emsgsize,
          "the server's message of #{length} bytes is longer than the :max_message of #{most}"
        )

      <<0, length::32, message::binary-size(length), rest::binary>> ->
        put_message(%{call | parts: [rest], held: byte_size(rest), needed: @prefix}, message)

      <<0, length::32, _part::binary>> = joined ->
        %{call | parts: [joined], needed: length + @prefix}

      <<1, _rest::binary>> ->
        refuse(
          call,
          :internal,
          "the server compressed a message, though nobody has allowed it to"
        )

      _other ->
        refuse(call, :internal, "the server's answer is no gRPC message")
    end
  end

  # A copy: what came with it is not to be kept with it.
  defp put_message(call, message) do
    if call.kind == :unary and not :queue.is_empty(call.messages),
      do:
        refuse(
          call,
          :internal,
          "the server answered with several messages, where one was expected"
        ),
      else: cut_messages(%{call | messages: :queue.in(:binary.copy(message), call.messages)})
  end

  defp refuse(call, reason, detail), do: finish(call, Status.error(:grpc, reason, detail))

  @doc "Ends the call with an error, unless its answer is complete."
  @spec fail(t(), {:error, Snakepit.Error.t()}) :: t()
  def fail(%{result: nil} = call, error), do: finish(call, error)
  def fail(call, _error), do: call

  @doc """
  Returns what whoever waits is to be told: a message, `:done`, an error, or `:wait`; and how many bytes the server may
  send again. It may when no whole message waits: a long one needs more than a window.
  """
  @spec take(t()) ::
          {{:ok, binary()} | :done | {:error, Snakepit.Error.t()} | :wait, non_neg_integer(), t()}
  def take(%{kind: :unary, result: nil} = call), do: consumed(:wait, call)

  def take(%{kind: :unary, result: :ok} = call) do
    case :queue.to_list(call.messages) do
      [message] ->
        consumed({:ok, message}, call)

      [] ->
        consumed(Status.error(:grpc, :internal, "the server answered without a message"), call)
    end
  end

  def take(%{kind: :unary, result: error} = call), do: consumed(error, call)

  def take(%{kind: :stream} = call) do
    case :queue.out(call.messages) do
      {{:value, message}, messages} -> consumed({:ok, message}, %{call | messages: messages})
      {:empty, _none} when call.result == nil -> consumed(:wait, call)
      {:empty, _none} when call.result == :ok -> consumed(:done, call)
      {:empty, _none} -> consumed(call.result, call)
    end
  end

  defp consumed(answer, call) do
    if call.kind == :unary or :queue.is_empty(call.messages),
      do: {answer, call.unconsumed, %{call | unconsumed: 0}},
      else: {answer, 0, call}
  end
end
