defmodule Snakepit.GRPC.HPACKTest do
  use ExUnit.Case, async: true

  alias Snakepit.GRPC.{HPACK, Huffman}

  defp hex(text), do: text |> String.replace(~r/\s/, "") |> Base.decode16!(case: :lower)

  # Blocks one after the other, as over one connection.
  defp decode(blocks, decoder \\ HPACK.new()) do
    Enum.map_reduce(blocks, decoder, fn block, decoder ->
      assert {:ok, headers, decoder} = HPACK.decode(decoder, hex(block))
      {headers, decoder}
    end)
  end

  test "requests with Huffman codes and a table, as in RFC 7541, C.4" do
    request = [
      {":method", "GET"},
      {":scheme", "http"},
      {":path", "/"},
      {":authority", "www.example.com"}
    ]

    {blocks, decoder} =
      decode([
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"
      ])

    assert blocks == [
             request,
             request ++ [{"cache-control", "no-cache"}],
             [
               {":method", "GET"},
               {":scheme", "https"},
               {":path", "/index.html"},
               {":authority", "www.example.com"},
               {"custom-key", "custom-value"}
             ]
           ]

    assert decoder.size == 164
  end

  test "answers that evict entries of a small table, as in RFC 7541, C.6" do
    rest = [
      {"cache-control", "private"},
      {"date", "Mon, 21 Oct 2013 20:13:21 GMT"},
      {"location", "https://www.example.com"}
    ]

    {blocks, decoder} =
      decode(
        [
          "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
          "4883 640e ffc1 c0bf"
        ],
        %{HPACK.new() | limit: 256}
      )

    assert blocks == [[{":status", "302"} | rest], [{":status", "307"} | rest]]
    assert decoder.size == 222
  end

  test "what is encoded is what is decoded, of any length" do
    headers =
      for size <- [0, 1, 126, 127, 128, 300, 20_000],
          do: {"name-#{size}", String.duplicate("v", size)}

    block = headers |> HPACK.encode() |> IO.iodata_to_binary()
    assert {:ok, ^headers, decoder} = HPACK.decode(HPACK.new(), block)
    assert decoder.entries == []
  end

  test "a block that is malformed is an error" do
    for block <- [
          # Entries that are not there.
          "80",
          "ff00",
          # Cut off.
          "40",
          "4085",
          "7f",
          # A length without end.
          "40ffffffffffffffffffff",
          # A table larger than anybody has allowed.
          "3fe21f",
          # Padding that is no padding, and a code that is the end of the string.
          "40810000",
          "4084ffffffff00"
        ],
        do: assert(HPACK.decode(HPACK.new(), hex(block)) == :error, block)
  end

  test "random bytes never raise" do
    :rand.seed(:exsss, {1, 2, 3})

    for _ <- 1..5_000 do
      block = :rand.bytes(:rand.uniform(60))

      assert match?({:ok, _, _}, HPACK.decode(HPACK.new(), block)) or
               HPACK.decode(HPACK.new(), block) == :error

      assert match?({:ok, _}, Huffman.decode(block)) or Huffman.decode(block) == :error
    end
  end
end
