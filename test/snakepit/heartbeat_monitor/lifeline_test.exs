defmodule Snakepit.HeartbeatMonitor.LifelineTest do
  use ExUnit.Case, async: true

  alias Snakepit.HeartbeatMonitor.Lifeline

  @asked "1700000000000"

  test "a pong that comes alone says when it was sent" do
    data = "PONG:#{@asked}:1700000000003\n"
    assert Lifeline.only_pong(data, @asked) == {:ok, 1_700_000_000_003}
    assert Lifeline.pongs(data) == {[{@asked, 3}], ""}
  end

  for {what, data} <- [
        {"nothing", ""},
        {"the beginning of one", "PONG:#{@asked}:17000000000"},
        {"one without a time", "PONG:#{@asked}\n"},
        {"one with an empty time", "PONG:#{@asked}:\n"},
        {"one with another time", "PONG:#{@asked}:soon\n"},
        {"one with a time before all others", "PONG:#{@asked}:-3\n"},
        {"one with more behind its time", "PONG:#{@asked}:1700000000003:ok\n"},
        {"one with a time that is none", "PONG:#{@asked}:#{String.duplicate("9", 900)}\n"},
        {"one that ends as another system's lines do", "PONG:#{@asked}:1700000000003\r\n"},
        {"two", String.duplicate("PONG:#{@asked}:1700000000003\n", 2)},
        {"one and the beginning of another", "PONG:#{@asked}:1700000000003\nPONG"},
        {"one to another ping", "PONG:1699999999999:1700000000003\n"},
        {"one to a ping that begins with this one", "PONG:#{@asked}0:1700000000003\n"},
        {"something before it", " PONG:#{@asked}:1700000000003\n"}
      ] do
    test "#{what} is not a pong alone" do
      assert Lifeline.only_pong(unquote(data), @asked) == :other
    end
  end

  test "all pongs are found in what has arrived, whatever their times are, and the rest is kept" do
    data = "PONG:1:4\nnoise\nPONG:2\nPONG:3:soon\nPONG:4:5:more\nPON"
    assert Lifeline.pongs(data) == {[{"1", 3}, {"2", nil}, {"3", nil}, {"4", 1}], "PON"}
  end

  test "a line that is too long is not kept" do
    assert Lifeline.pongs("PONG:1:4\n" <> String.duplicate("x", 2_000)) == {[{"1", 3}], ""}
  end
end
