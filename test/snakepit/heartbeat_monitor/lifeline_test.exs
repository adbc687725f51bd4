defmodule Snakepit.HeartbeatMonitor.LifelineTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Lifelines

  alias Snakepit.HeartbeatMonitor.Lifeline

  test "a pong has the timestamp of its ping, and when it was sent" do
    assert Lifeline.pongs("PONG:1700000000000:1700000000003\n") ==
             {[{1_700_000_000_000, 1_700_000_000_003}], ""}
  end

  for {what, line, pong} <- [
        {"no time", "PONG:17", {17, nil}},
        {"an empty time", "PONG:17:", {17, nil}},
        {"a time that is no number", "PONG:17:soon", {17, nil}},
        {"a time before all others", "PONG:17:-3", {17, -3}},
        {"more behind its time", "PONG:17:20:ok", {17, 20}},
        {"the end of a line of another system", "PONG:17:20\r", {17, 20}},
        {"nothing at all", "PONG:", {nil, nil}},
        {"a timestamp that is no number", "PONG:now:20", {nil, nil}},
        {"more behind its timestamp", "PONG:17x:20", {nil, nil}}
      ] do
    test "a pong with #{what} is a pong all the same" do
      assert Lifeline.pongs(unquote(line) <> "\n") == {[unquote(Macro.escape(pong))], ""}
    end
  end

  test "all pongs are found in what has arrived, and the beginning of the next line is kept" do
    assert Lifeline.pongs("PONG:1:4\nnoise\n PONG:2:5\nPONG\n\nPONG:3:6\nPON") ==
             {[{1, 4}, {3, 6}], "PON"}
  end

  test "a line that is too long is not kept" do
    assert Lifeline.pongs("PONG:1:4\n" <> String.duplicate("x", 2_000)) == {[{1, 4}], ""}
  end

  test "over a socket: a ping, and its pong in pieces" do
    {ours, theirs} = lifeline()
    assert Lifeline.ping(ours, 17) == :ok
    assert :socket.recv(theirs, 0, 5_000) == {:ok, "PING:17\n"}

    assert Lifeline.read(ours, "") == :nothing
    :ok = :socket.send(theirs, "PONG:17:")
    assert_receive {:"$socket", ^ours, :select, _handle}, 5_000
    assert {:ok, [], "PONG:17:" = rest} = Lifeline.read(ours, "")
    assert Lifeline.read(ours, rest) == :nothing
    :ok = :socket.send(theirs, "20\n")
    assert_receive {:"$socket", ^ours, :select, _handle}, 5_000
    assert Lifeline.read(ours, rest) == {:ok, [{17, 20}], ""}

    :ok = :socket.close(theirs)
    assert Lifeline.read(ours, "") == :nothing
    assert {:error, _closed} = Lifeline.ping(ours, 18)
  end
end
