defmodule Snakepit.GRPC.HTTP2Test do
  # The server is made of bytes.
  use ExUnit.Case, async: true

  alias Snakepit.GRPC.{Frame, HPACK, HTTP2}

  @headers [{":path", "/a.B/C"}]
  @answer [{":status", "200"}]

  defp frame(type, flags, id, payload),
    do: <<byte_size(payload)::24, type, flags, id::32, payload::binary>>

  defp headers(id, headers, flags \\ 0x4),
    do: frame(0x1, flags, id, IO.iodata_to_binary(HPACK.encode(headers)))

  defp settings(pairs), do: frame(0x4, 0, 0, for({n, v} <- pairs, into: "", do: <<n::16, v::32>>))
  defp window(id, count), do: frame(0x8, 0, id, <<count::32>>)

  # A connection that has begun.
  defp connection(pairs \\ []) do
    {out, http2} = HTTP2.take_out(HTTP2.new())
    assert IO.iodata_to_binary(out) =~ ~r/\APRI \* HTTP\/2.0\r\n\r\nSM\r\n\r\n/
    {:ok, [], http2} = HTTP2.receive(http2, settings(pairs))
    {_applied, http2} = sent(http2)
    http2
  end

  defp open(http2, body \\ "") do
    assert {:ok, id, http2} = HTTP2.open(http2, @headers, body)
    {id, http2}
  end

  # The frames that were sent.
  defp sent(http2) do
    {out, http2} = HTTP2.take_out(http2)
    {frames(IO.iodata_to_binary(out)), http2}
  end

  defp frames(""), do: []

  defp frames(bytes) do
    assert <<length::24, type, flags, id::32, payload::binary-size(length), rest::binary>> = bytes
    [{type, flags, id, payload} | frames(rest)]
  end

  # How many bytes of data were sent, and whether the last of them was.
  defp data_sent(http2) do
    {frames, http2} = sent(http2)
    data = for {0x0, flags, _id, payload} <- frames, do: {byte_size(payload), flags}
    for {size, _flags} <- data, do: assert(size <= 16_384)
    {data |> Enum.map(&elem(&1, 0)) |> Enum.sum(), match?({_size, 0x1}, List.last(data)), http2}
  end

  test "a body is sent as far as the windows of stream and connection allow" do
    {first, http2} = open(connection(), :binary.copy("x", 100_000))
    assert {65_535, false, http2} = data_sent(http2)

    # That of the stream alone does not help, nor does that of the connection.
    {:ok, [], http2} = HTTP2.receive(http2, window(first, 1_000_000))
    assert {0, false, http2} = data_sent(http2)
    {:ok, [], http2} = HTTP2.receive(http2, window(0, 10))
    assert {10, false, http2} = data_sent(http2)
    {:ok, [], http2} = HTTP2.receive(http2, window(0, 1_000_000))
    assert {34_455, true, _http2} = data_sent(http2)
  end

  test "a change of the initial window counts for streams that are open" do
    {_id, http2} = open(connection([{0x4, 10}]), :binary.copy("x", 100))
    assert {10, false, http2} = data_sent(http2)
    {:ok, [], http2} = HTTP2.receive(http2, settings([{0x4, 5}]))
    assert {0, false, http2} = data_sent(http2)
    {:ok, [], http2} = HTTP2.receive(http2, settings([{0x4, 50}]))
    assert {40, false, http2} = data_sent(http2)
    {:ok, [], http2} = HTTP2.receive(http2, settings([{0x4, 100}]))
    assert {50, true, _http2} = data_sent(http2)
  end

  test "an answer comes in any pieces" do
    {id, http2} = open(connection())

    bytes =
      headers(id, @answer) <>
        frame(0x0, 0x8, id, <<3, "abc", 0, 0, 0>>) <>
        frame(0x6, 0, 0, "12345678") <>
        headers(id, [{"grpc-status", "0"}], 0x5)

    {events, http2} =
      for <<byte <- bytes>>, reduce: {[], http2} do
        {events, http2} ->
          assert {:ok, new, http2} = HTTP2.receive(http2, <<byte>>)
          {events ++ new, http2}
      end

    assert events == [
             {:headers, id, @answer, false},
             {:data, id, "abc", 7, false},
             {:headers, id, [{"grpc-status", "0"}], true}
           ]

    {frames, http2} = sent(http2)
    assert {0x6, 0x1, 0, "12345678"} in frames
    assert http2.streams == %{}
  end

  test "a block of headers goes on in further frames, and nothing comes between them" do
    {id, http2} = open(connection())
    block = IO.iodata_to_binary(HPACK.encode(@answer))
    <<a::binary-3, b::binary>> = block
    begun = frame(0x1, 0, id, a)

    assert {:ok, [{:headers, ^id, @answer, false}], _} =
             HTTP2.receive(http2, begun <> frame(0x9, 0x4, id, b))

    assert {:error, _text, [], _} = HTTP2.receive(http2, begun <> window(0, 1))
    assert {:error, _text, [], _} = HTTP2.receive(http2, begun <> frame(0x9, 0x4, id + 2, b))
  end

  test "long headers are sent in several frames" do
    {:ok, _id, http2} = HTTP2.open(connection(), [{"x", :binary.copy("v", 40_000)}], "")
    {frames, _http2} = sent(http2)
    assert [{0x1, 0, 1, a}, {0x9, 0, 1, b}, {0x9, 0x4, 1, c}, {0x0, 0x1, 1, ""}] = frames
    assert {:ok, [{"x", _}], _} = HPACK.decode(HPACK.new(), a <> b <> c)
  end

  test "a stream's window is returned when its data was taken, the connection's at once" do
    {id, http2} = open(connection())
    {_frames, http2} = sent(http2)
    data = frame(0x0, 0, id, :binary.copy("x", 16_384))
    {:ok, _events, http2} = HTTP2.receive(http2, headers(id, @answer) <> data)
    assert {[{0x8, 0, 0, <<16_384::32>>}], http2} = sent(http2)
    assert {[{0x8, 0, ^id, <<16_384::32>>}], http2} = http2 |> HTTP2.consume(id, 16_384) |> sent()

    # A server that sends more than it may is at fault.
    assert {:error, text, _events, http2} = HTTP2.receive(http2, String.duplicate(data, 17))
    assert text =~ "window"
    {frames, _http2} = sent(http2)
    assert {0x7, 0, 0, <<0::32, 1::32>>} in frames
  end

  test "of a stream that was cancelled nothing is heard, and the table of headers goes on" do
    {id, http2} = open(connection())
    {_frames, http2} = sent(http2)
    assert {[{0x3, 0, ^id, <<8::32>>}], http2} = http2 |> HTTP2.cancel(id) |> sent()
    # With an entry for the table, which the next block refers to.
    {next, http2} = open(http2)

    late =
      frame(0x1, 0x4, id, <<0x40, 1, "a", 1, "b">>) <>
        frame(0x0, 0, id, "late") <> frame(0x3, 0, id, <<0::32>>)

    assert {:ok, [], http2} = HTTP2.receive(http2, late)

    assert {:ok, [{:headers, ^next, [{"a", "b"}], false}], _} =
             HTTP2.receive(http2, frame(0x1, 0x4, next, <<0xBE>>))
  end

  test "a server that leaves ends the streams that it has not begun, and takes no others" do
    {first, http2} = open(connection())
    {second, http2} = open(http2)

    assert {:ok, [{:refused, ^second}], http2} =
             HTTP2.receive(http2, frame(0x7, 0, 0, <<first::32, 0::32>>))

    assert HTTP2.open(http2, @headers, "") == {:error, :leaving}

    assert {:ok, [{:headers, ^first, _, true}], _} =
             HTTP2.receive(http2, headers(first, @answer, 0x5))
  end

  test "as many streams are open as the server allows" do
    {id, http2} = open(connection([{0x3, 1}]))
    assert HTTP2.open(http2, @headers, "") == {:error, :full}
    {:ok, _events, http2} = HTTP2.receive(http2, headers(id, @answer, 0x5))
    assert {:ok, _id, _http2} = HTTP2.open(http2, @headers, "")
  end

  test "an answer that ends before the request was sent ends the request too" do
    {id, http2} = open(connection(), :binary.copy("x", 100_000))
    {_frames, http2} = sent(http2)
    {:ok, [_headers], http2} = HTTP2.receive(http2, headers(id, @answer, 0x5))
    assert {[{0x3, 0, ^id, <<0::32>>}], %{streams: streams}} = sent(http2)
    assert streams == %{}
  end

  test "what is against the rules ends the connection" do
    {id, http2} = open(connection())

    for bytes <- [
          <<16_385::24, 0, 0, id::32>>,
          frame(0x0, 0, 0, "x"),
          frame(0x0, 0x8, id, <<9, "abc">>),
          frame(0x0, 0, 77, "x"),
          frame(0x1, 0x4, 2, ""),
          frame(0x1, 0x4, id, <<0x80>>),
          frame(0x3, 0, id, "abc"),
          frame(0x4, 0, 0, "abc"),
          frame(0x4, 0, id, ""),
          frame(0x5, 0x4, id, <<2::32>>),
          frame(0x6, 0, 0, "abc"),
          frame(0x8, 0, 0, <<0::32>>),
          window(0, 0x7FFFFFFF),
          settings([{0x4, 0x80000000}]),
          settings([{0x5, 1}]),
          "HTTP/1.1 400 Bad Request\r\n\r\n"
        ],
        do: assert({:error, _text, [], _http2} = HTTP2.receive(http2, bytes), inspect(bytes))

    # Headers without end.
    endless = Enum.map_join(1..5, fn _ -> frame(0x9, 0, id, :binary.copy("x", 16_384)) end)
    assert {:error, text, [], _} = HTTP2.receive(http2, frame(0x1, 0, id, "") <> endless)
    assert text =~ "65536"
  end

  test "frames of a kind that nobody knows, and late ones, are no fault" do
    {id, http2} = open(connection())

    bytes =
      frame(0x2, 0, id, <<0::40>>) <>
        frame(0xFA, 255, 7, "x") <> frame(0x6, 1, 0, "12345678") <> frame(0x4, 1, 0, "")

    assert {:ok, [], _http2} = HTTP2.receive(http2, bytes)
    assert Frame.next("") == :more
  end

  test "whatever is received, nothing raises, and what is kept is bounded" do
    :rand.seed(:exsss, {4, 5, 6})

    for _ <- 1..2_000 do
      {_id, http2} = open(connection(), "abc")

      bytes =
        for _ <- 1..:rand.uniform(8), into: "" do
          size = :rand.uniform(12) - 1

          frame(
            :rand.uniform(11) - 1,
            :rand.uniform(256) - 1,
            :rand.uniform(5) - 1,
            :rand.bytes(size)
          )
        end

      case HTTP2.receive(http2, bytes) do
        {:ok, events, http2} -> assert is_list(events) and byte_size(http2.buffer) <= 16_393
        {:error, text, _events, _http2} -> assert is_binary(text)
      end
    end
  end
end
