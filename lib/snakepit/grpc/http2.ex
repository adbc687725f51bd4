defmodule Snakepit.GRPC.HTTP2 do
  @moduledoc false

  # A client's side of one connection of HTTP/2 (RFC 9113) without TLS, as decisions alone: bytes come in, events and
  # bytes to send come out. It knows streams, windows and headers, and nothing of gRPC.
  #
  # Windows: what arrives counts against the connection's window, and is returned to it at once. A stream's window is
  # returned by `consume/3`, when whoever reads the stream has taken its data. So a reader that does not read keeps
  # no other from reading, and at most a window of its data is held.

  alias Snakepit.GRPC.{Frame, HPACK}

  @default_window 65_535
  @stream_window 262_144
  @connection_window 16_777_216
  @largest_window 0x7FFFFFFF
  @last_id 0x7FFFFFFF
  # Trailers hold a status and a sentence.
  @max_headers 65_536

  defstruct hpack: HPACK.new(),
            # Bytes of a frame that is not whole yet.
            buffer: "",
            # {id, blocks, last?} of headers that go on in further frames.
            block: nil,
            next_id: 1,
            streams: %{},
            send_window: @default_window,
            receive_window: @connection_window,
            # What the server has said of itself.
            initial_window: @default_window,
            max_frame: 16_384,
            max_streams: :infinity,
            # Whether the server takes no further streams.
            leaving?: false,
            out: []

  @type t :: %__MODULE__{}
  @type id :: pos_integer()

  @type event ::
          {:headers, id(), [HPACK.header()], last? :: boolean()}
          | {:data, id(), binary(), counted :: non_neg_integer(), last? :: boolean()}
          | {:reset, id(), code :: non_neg_integer()}
          # The server has not looked at this stream.
          | {:refused, id()}

  @doc "Returns a connection that is about to begin."
  @spec new() :: t()
  def new do
    settings = [enable_push: 0, initial_window: @stream_window, max_headers: @max_headers]
    begin = [Frame.preface(settings), Frame.window(0, @connection_window - @default_window)]
    %__MODULE__{out: [begin]}
  end

  @doc "Returns what is to be sent, in order."
  @spec take_out(t()) :: {iodata(), t()}
  def take_out(http2), do: {Enum.reverse(http2.out), %{http2 | out: []}}

  @doc "Begins a stream, with a body that is complete. With `:full`, it can be tried again when another stream has ended."
  @spec open(t(), [HPACK.header()], binary()) :: {:ok, id(), t()} | {:error, :full | :leaving}
  def open(%{leaving?: true}, _headers, _body), do: {:error, :leaving}
  def open(%{next_id: id}, _headers, _body) when id > @last_id, do: {:error, :leaving}

  def open(http2, _headers, _body) when map_size(http2.streams) >= http2.max_streams,
    do: {:error, :full}

  def open(%{next_id: id} = http2, headers, body) do
    stream = %{send: http2.initial_window, receive: @stream_window, pending: body}

    http2 =
      %{http2 | next_id: id + 2, streams: Map.put(http2.streams, id, stream)}
      |> emit(Frame.headers(id, headers, http2.max_frame))
      |> send_pending(id)

    {:ok, id, http2}
  end

  @doc "Ends a stream before its time. Nothing is heard of it any more."
  @spec cancel(t(), id()) :: t()
  def cancel(http2, id) do
    if is_map_key(http2.streams, id), do: forget(http2, id, 0x8), else: http2
  end

  @doc "Allows the server to send so many bytes more on a stream."
  @spec consume(t(), id(), non_neg_integer()) :: t()
  def consume(http2, _id, 0), do: http2

  def consume(http2, id, count) do
    case http2.streams do
      %{^id => stream} ->
        http2
        |> put(id, %{stream | receive: stream.receive + count})
        |> emit(Frame.window(id, count))

      _ended ->
        http2
    end
  end

  @doc "Takes bytes from the server. After an error the connection is of no use, and its last words are to be sent."
  @spec receive(t(), binary()) :: {:ok, [event()], t()} | {:error, String.t(), [event()], t()}
  def receive(http2, bytes) do
    {result, events, http2} = frames(%{http2 | buffer: http2.buffer <> bytes}, [])
    events = Enum.reverse(events)

    case result do
      :ok -> {:ok, events, return_window(http2)}
      {:error, text} -> {:error, text, events, emit(http2, Frame.goaway(0x1))}
    end
  end

  defp return_window(%{receive_window: @connection_window} = http2), do: http2

  defp return_window(http2) do
    used = @connection_window - http2.receive_window
    emit(%{http2 | receive_window: @connection_window}, Frame.window(0, used))
  end

  defp frames(http2, events) do
    with {:ok, frame, rest} <- Frame.next(http2.buffer),
         {:ok, new, http2} <- hear(frame, %{http2 | buffer: rest}) do
      frames(http2, new ++ events)
    else
      :more -> {:ok, events, http2}
      {:error, text} -> {{:error, text}, events, http2}
    end
  end

  # Nothing may come between the frames of one block of headers.
  defp hear({:continuation, id, block, whole?}, %{block: {id, blocks, last?}} = http2),
    do: block(%{http2 | block: nil}, id, [blocks | block], whole?, last?)

  defp hear(_frame, %{block: {_id, _blocks, _last?}}),
    do: {:error, "a frame between those of a block of headers"}

  defp hear({:headers, id, block, whole?, last?}, http2),
    do: block(http2, id, block, whole?, last?)

  defp hear({:data, id, data, counted, last?}, http2) do
    http2 = %{http2 | receive_window: http2.receive_window - counted}

    case http2.streams do
      _all when http2.receive_window < 0 ->
        {:error, "more data than the connection's window"}

      %{^id => %{receive: left}} when left < counted ->
        {:error, "more data than a stream's window"}

      %{^id => stream} ->
        data(http2, id, stream, {data, counted, last?})

      _ended ->
        known(http2, id)
    end
  end

  defp hear({:reset, id, code}, http2) do
    if is_map_key(http2.streams, id),
      do: {:ok, [{:reset, id, code}], %{http2 | streams: Map.delete(http2.streams, id)}},
      else: known(http2, id)
  end

  defp hear({:settings, settings}, http2) do
    with {:ok, http2} <- apply_settings(settings, http2) do
      # Windows may have grown.
      {:ok, [], http2 |> emit(Frame.settings_applied()) |> send_all_pending()}
    end
  end

  defp hear({:ping, opaque}, http2), do: {:ok, [], emit(http2, Frame.pong(opaque))}

  # Streams up to the last one go on.
  defp hear({:goaway, last, _code, _text}, http2) do
    refused = for {id, _stream} <- http2.streams, id > last, do: id

    {:ok, for(id <- refused, do: {:refused, id}),
     %{http2 | leaving?: true, streams: Map.drop(http2.streams, refused)}}
  end

  defp hear({:window, 0, increment}, http2) do
    window = http2.send_window + increment

    if window > @largest_window,
      do: {:error, "a window beyond what there may be"},
      else: {:ok, [], send_all_pending(%{http2 | send_window: window})}
  end

  defp hear({:window, id, increment}, http2) do
    case http2.streams do
      %{^id => %{send: window}} when window + increment > @largest_window ->
        {:ok, [{:reset, id, 0x3}], forget(http2, id, 0x3)}

      %{^id => stream} ->
        {:ok, [], http2 |> put(id, %{stream | send: stream.send + increment}) |> send_pending(id)}

      _ended ->
        known(http2, id)
    end
  end

  defp hear(:ignored, http2), do: {:ok, [], http2}
  defp hear(frame, _http2), do: {:error, "a frame out of place (#{elem(frame, 0)})"}

  # Of a stream that has ended here, something may have been under way. One that was never begun is a fault.
  defp known(%{next_id: next} = http2, id) when rem(id, 2) == 1 and id < next,
    do: {:ok, [], http2}

  defp known(_http2, _id), do: {:error, "a frame for a stream that nobody has begun"}

  defp block(http2, id, block, whole?, last?) do
    cond do
      IO.iodata_length(block) > @max_headers ->
        {:error, "headers of more than #{@max_headers} bytes"}

      not whole? ->
        {:ok, [], %{http2 | block: {id, block, last?}}}

      true ->
        headers(http2, id, IO.iodata_to_binary(block), last?)
    end
  end

  # Decoded in any case: the next block refers to this one.
  defp headers(http2, id, block, last?) do
    with {:ok, headers, hpack} <- HPACK.decode(http2.hpack, block) do
      http2 = %{http2 | hpack: hpack}

      if is_map_key(http2.streams, id),
        do:
          {:ok, [{:headers, id, headers, last?}], if(last?, do: finish(http2, id), else: http2)},
        else: known(http2, id)
    else
      :error -> {:error, "headers that cannot be decoded"}
    end
  end

  defp data(http2, id, stream, {data, counted, last?}) do
    http2 = put(http2, id, %{stream | receive: stream.receive - counted})
    {:ok, [{:data, id, data, counted, last?}], if(last?, do: finish(http2, id), else: http2)}
  end

  # The answer is there. What the server has not wanted to hear need not be sent.
  defp finish(http2, id) do
    case http2.streams do
      %{^id => %{pending: :sent}} -> %{http2 | streams: Map.delete(http2.streams, id)}
      _still_sending -> forget(http2, id, 0x0)
    end
  end

  defp forget(http2, id, code),
    do: emit(%{http2 | streams: Map.delete(http2.streams, id)}, Frame.reset(id, code))

  defp apply_settings(settings, http2) do
    Enum.reduce_while(settings, {:ok, http2}, fn setting, {:ok, http2} ->
      case apply_setting(setting, http2) do
        {:error, text} -> {:halt, {:error, text}}
        http2 -> {:cont, {:ok, http2}}
      end
    end)
  end

  defp apply_setting({:initial_window, size}, _http2) when size > @largest_window,
    do: {:error, "a window beyond what there may be"}

  # Of streams that are open too: their windows may be negative afterwards.
  defp apply_setting({:initial_window, size}, http2) do
    change = size - http2.initial_window

    streams =
      Map.new(http2.streams, fn {id, stream} -> {id, %{stream | send: stream.send + change}} end)

    %{http2 | initial_window: size, streams: streams}
  end

  defp apply_setting({:max_frame, size}, http2) when size in 16_384..16_777_215,
    do: %{http2 | max_frame: size}

  defp apply_setting({:max_frame, _size}, _http2),
    do: {:error, "a size of frames that is not allowed"}

  defp apply_setting({:max_streams, count}, http2), do: %{http2 | max_streams: count}
  defp apply_setting(_other, http2), do: http2

  defp send_all_pending(http2),
    do: http2.streams |> Map.keys() |> Enum.sort() |> Enum.reduce(http2, &send_pending(&2, &1))

  # As much as both windows allow. An empty body needs no window.
  defp send_pending(http2, id) do
    case http2.streams[id] do
      %{pending: :sent} -> http2
      stream -> send_some(http2, id, stream, min(stream.send, http2.send_window))
    end
  end

  defp send_some(http2, id, %{pending: body} = stream, allowed) do
    size = body |> byte_size() |> min(http2.max_frame) |> min(allowed)

    if size > 0 or body == "" do
      {part, rest} = :erlang.split_binary(body, size)
      last? = rest == ""
      stream = %{stream | send: stream.send - size, pending: if(last?, do: :sent, else: rest)}

      %{http2 | send_window: http2.send_window - size}
      |> put(id, stream)
      |> emit(Frame.data(id, part, last?))
      |> send_pending(id)
    else
      http2
    end
  end

  defp put(http2, id, stream), do: %{http2 | streams: Map.put(http2.streams, id, stream)}
  defp emit(http2, bytes), do: %{http2 | out: [bytes | http2.out]}
end
