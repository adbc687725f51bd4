defmodule Snakepit.Output.PacketsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Output.Packets

  @lengths [0, 1, 2, 100, 255]

  test "packets come out whole, wherever the stream was cut" do
    :rand.seed(:exsss, {1, 2, ExUnit.configuration()[:seed]})

    for header <- [1, 2, 4], _ <- 1..50 do
      packets = for _ <- 1..20, do: :rand.bytes(Enum.random(@lengths))
      stream = packets |> Enum.map(&Packets.frame(&1, header)) |> IO.iodata_to_binary()

      {cut, _packets} =
        Enum.flat_map_reduce(pieces(stream), Packets.new(header, 255), fn piece, packets ->
          {:ok, complete, packets} = Packets.split(packets, piece)
          {complete, packets}
        end)

      assert cut == packets
    end
  end

  defp pieces(""), do: []

  defp pieces(stream) do
    length = min(Enum.random([1, 2, 3, 50, 500]), byte_size(stream))
    rest = binary_part(stream, length, byte_size(stream) - length)
    [binary_part(stream, 0, length) | pieces(rest)]
  end

  test "one that is too long is refused by its length, with those before it" do
    stream = IO.iodata_to_binary([Packets.frame("fits", 2), <<11::16>>])
    assert {:too_long, ["fits"], _packets} = Packets.split(Packets.new(2, 10), stream)
  end

  test "a long packet in many pieces takes time in proportion to its length" do
    packets = Packets.new(4, 64 * 1024 * 1024)
    piece = :binary.copy("x", 1024)
    {:ok, [], begun} = Packets.split(packets, <<16 * 1024 * 1024::32>>)

    begun =
      Enum.reduce(1..(16 * 1024 - 1), begun, fn _number, packets ->
        {:ok, [], packets} = Packets.split(packets, piece)
        packets
      end)

    # Joined once, and not with each piece.
    assert length(begun.parts) == 16 * 1024
    assert {:ok, [packet], _packets} = Packets.split(begun, piece)
    assert byte_size(packet) == 16 * 1024 * 1024
  end
end
