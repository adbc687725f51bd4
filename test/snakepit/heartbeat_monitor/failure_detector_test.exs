defmodule Snakepit.HeartbeatMonitor.FailureDetectorTest do
  use ExUnit.Case, async: true

  alias Snakepit.HeartbeatMonitor.{FailureDetector, Health}

  # Monotonic time begins anywhere, below zero too, and has nothing to do with the time since the epoch.
  @begin -5_000
  @epoch 1_700_000_000_000

  defp at(ms), do: {@begin + ms, @epoch + ms}

  defp new(opts \\ []) do
    defaults = %{
      ping_interval: 2_000,
      timeout_threshold: 10_000,
      max_missed_heartbeats: 3,
      patient: false
    }

    {transport, opts} = Keyword.pop(opts, :transport, :lifeline)
    FailureDetector.new(transport, Enum.into(opts, defaults))
  end

  defp pinged(detector, ms) do
    {detector, actions} = FailureDetector.ping(detector, at(ms))
    assert actions == [{:ping, @epoch + ms}]
    detector
  end

  # That a ping of then was answered by the process then, and when the answer is looked at.
  defp pong(detector, pinged, answered, looked),
    do:
      FailureDetector.pong(
        detector,
        {@epoch + pinged, answered && @epoch + answered},
        now(looked)
      )

  defp now(ms), do: @begin + ms
  defp tick(detector, ms), do: FailureDetector.tick(detector, at(ms))
  defp due(detector), do: detector.due - @begin
  defp health(detector, ms), do: FailureDetector.health(detector, now(ms))

  # One that has answered its first ping, at 0, and says when it does.
  defp answering(opts \\ []) do
    {detector, [{:pong, 2}, :first_pong]} = new(opts) |> pinged(0) |> pong(0, 2, 3)
    detector
  end

  test "before the first pong nothing is known, and after it the process is healthy" do
    detector = pinged(new(), 0)

    assert health(detector, 1) == %Health{
             status: :unknown,
             missed_heartbeats: 0,
             pings_sent: 1,
             pongs_received: 0,
             last_pong_ms_ago: nil,
             last_latency_ms: nil
           }

    {detector, actions} = pong(detector, 0, 2, 7)
    assert actions == [{:pong, 2}, :first_pong]

    assert health(detector, 12) == %Health{
             status: :healthy,
             missed_heartbeats: 0,
             pings_sent: 1,
             pongs_received: 1,
             last_pong_ms_ago: 10,
             last_latency_ms: 2
           }
  end

  describe "when to look for a pong" do
    test "the first one: at once, and then until the end of the threshold" do
      detector = pinged(new(), 0)
      assert due(detector) == 0
      assert {detector, []} = tick(detector, 0)
      assert due(detector) == 10_000
    end

    test "one that says when it was sent: with the next ping, on a multiple of a tenth of a second" do
      detector = answering()
      assert due(detector) == 2_000
      {detector, [{:ping, _}]} = tick(detector, 2_030)
      # Its pong and the next ping.
      assert due(detector) == 4_000
      assert {detector, [{:pong, 5}]} = pong(detector, 2_030, 2_035, 4_010)
      assert {detector, [{:ping, _}]} = tick(detector, 4_010)
      assert due(detector) == 6_000
    end

    test "a short interval has narrower multiples: a twentieth of it" do
      detector = pinged(answering(ping_interval: 400), 437)
      assert due(detector) == 820
    end

    test "one that does not say when, or by another clock: after a moment" do
      for answered <- [nil, 3_600_000, -3_600_000] do
        {detector, [{:pong, 7}, :first_pong]} = new() |> pinged(0) |> pong(0, answered, 7)
        assert due(detector) == 2_000
        {detector, [{:ping, _}]} = tick(detector, 2_000)
        assert due(detector) == 2_003
        # It is not there yet.
        assert {detector, []} = tick(detector, 2_003)
        assert due(detector) == 12_000
        assert {detector, [{:pong, 50}]} = pong(detector, 2_000, answered, 2_050)
        assert due(detector) == 4_000
      end
    end

    test "one that comes after the time of the next ping: the ping follows at once" do
      {detector, [{:ping, _}]} = tick(answering(), 2_000)
      {detector, []} = tick(detector, 4_000)
      assert due(detector) == 12_000
      {detector, [{:pong, 5_000}]} = pong(detector, 2_000, 7_000, 7_001)
      assert due(detector) == 7_001
      assert {_detector, [{:ping, _}]} = tick(detector, 7_001)
    end

    test "a threshold shorter than the interval: at its end" do
      {detector, _actions} = tick(answering(timeout_threshold: 500), 2_000)
      assert due(detector) == 2_500
      {detector, [{:pong, 1}]} = pong(detector, 2_000, 2_001, 2_500)
      assert due(detector) == 4_000
      # A tick before its time does no harm.
      assert {detector, []} = tick(detector, 3_000)
      assert due(detector) == 4_000
    end
  end

  test "the clocks of the process and of the BEAM may differ by a millisecond that has just begun" do
    for {answered, next_look} <- [{4, 4_000}, {5, 2_003}] do
      {detector, actions} = new() |> pinged(0) |> pong(0, answered, 3)
      assert actions == [{:pong, 3}, :first_pong]
      # Only one that says when it answered can wait for the next ping.
      {detector, [{:ping, _}]} = tick(detector, 2_000)
      assert due(detector) == next_look
    end
  end

  describe "a miss" do
    test "is no pong at the end of the threshold, and the next ping follows at once" do
      {detector, [{:ping, _}]} = tick(answering(), 2_000)
      {detector, []} = tick(detector, 4_000)
      {detector, actions} = tick(detector, 12_000)
      assert actions == [{:missed, 1}, {:ping, @epoch + 12_000}]
      assert %{status: :unhealthy, missed_heartbeats: 1, pings_sent: 3} = health(detector, 12_000)
    end

    test "as many in a row as are allowed are the end, and nothing follows" do
      detector = answering(timeout_threshold: 1_000)
      {detector, [{:ping, _}]} = tick(detector, 2_000)
      {detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 3_000)
      {detector, [{:missed, 2}, {:ping, _}]} = tick(detector, 4_000)
      {detector, actions} = tick(detector, 5_000)
      assert actions == [{:missed, 3}, :dead]
      assert detector.due == nil
      # As promised: threshold * misses after the ping, which is an interval after the last pong.
      assert %{status: :unhealthy, missed_heartbeats: 3} = health(detector, 5_000)
    end

    test "does not count after a pong, be it to an earlier ping" do
      detector = answering(timeout_threshold: 1_000)
      {detector, [{:ping, _}]} = tick(detector, 2_000)
      {detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 3_000)
      {detector, [{:missed, 2}, {:ping, _}]} = tick(detector, 4_000)

      {detector, actions} = pong(detector, 2_000, 4_100, 4_200)
      # It does not answer the ping in flight, so it has no latency and moves no tick.
      assert actions == []
      assert due(detector) == 5_000

      assert %{status: :healthy, missed_heartbeats: 0, pongs_received: 2} =
               health(detector, 4_200)

      assert %{last_pong_ms_ago: 100, last_latency_ms: 2} = health(detector, 4_300)
      assert {_detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 5_000)
    end

    test "is not counted if its end is noticed late: the BEAM was paused, and perhaps the process too" do
      {detector, [{:ping, _}]} = tick(answering(timeout_threshold: 1_000), 2_000)
      assert due(detector) == 3_000
      assert {on_time, [{:missed, 1}, {:ping, _}]} = tick(detector, 3_050)
      assert on_time.missed == 1
      assert {detector, []} = tick(detector, 3_051)
      assert due(detector) == 4_051
      assert %{status: :healthy, pings_sent: 2} = health(detector, 3_051)
      # Its pong counts, whenever it comes.
      assert {answered, [{:pong, 2_000}]} = pong(detector, 2_000, 4_000, 4_000)
      assert answered.in_flight == nil
      assert {_detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 4_051)
    end

    test "is not counted before the first pong if somebody else limits that, and no ping is added" do
      {detector, []} = new(patient: true, timeout_threshold: 100) |> pinged(0) |> tick(0)
      {detector, []} = tick(detector, 100)
      assert due(detector) == 200
      {detector, []} = tick(detector, 200)
      assert %{status: :unknown, pings_sent: 1, missed_heartbeats: 0} = health(detector, 200)
      {detector, [{:pong, 250}, :first_pong]} = pong(detector, 0, 250, 250)
      # From now on it is as for others.
      {detector, [{:ping, _}]} = tick(detector, 2_000)
      assert {_detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 2_100)
    end
  end

  test "a ping that is forced goes out unless one is in flight" do
    detector = answering()
    assert {detector, [{:ping, timestamp}]} = FailureDetector.force_ping(detector, at(500))
    assert timestamp == @epoch + 500
    assert due(detector) == 2_500
    assert {^detector, []} = FailureDetector.force_ping(detector, at(501))
  end

  test "a ping that follows another without its pong has a threshold of its own, and is no miss" do
    detector = pinged(answering(timeout_threshold: 3_000), 2_000)
    detector = pinged(detector, 4_900)
    assert {detector, []} = tick(detector, 6_900)
    assert due(detector) == 7_900
    assert %{status: :healthy, missed_heartbeats: 0} = health(detector, 6_900)
    # The pong to the first is a sign of life.
    assert {detector, []} = pong(detector, 2_000, 2_001, 6_950)
    assert {_detector, [{:pong, 1}]} = pong(detector, 4_900, 4_901, 6_960)
  end

  describe "a :ping function" do
    defp function(opts \\ []), do: pinged(new([transport: :function] ++ opts), 0)

    test "is awaited until the end of its threshold" do
      detector = function()
      assert due(detector) == 10_000
      {detector, [{:pong, 30}, :first_pong]} = pong(detector, 0, nil, 30)
      assert due(detector) == 2_000
      {detector, [{:ping, _}]} = tick(detector, 2_000)
      assert due(detector) == 12_000
    end

    test "that says no is asked again after the interval, within the same threshold" do
      detector = FailureDetector.declined(function(timeout_threshold: 5_000), @epoch, now(10))
      assert due(detector) == 2_010
      {detector, actions} = tick(detector, 2_010)
      assert actions == [{:retry, @epoch}]
      assert due(detector) == 5_000
      # Until it answers it is not asked again.
      assert {^detector, []} = tick(detector, 2_011)

      detector = FailureDetector.declined(detector, @epoch, now(4_000))
      assert due(detector) == 5_000
      assert {detector, [{:missed, 1}, {:ping, _}]} = tick(detector, 5_000)
      # A late no to the ping before says nothing about this one.
      assert FailureDetector.declined(detector, @epoch, now(5_001)) == detector
    end

    test "that says no is asked again after a pause of the BEAM" do
      detector = FailureDetector.declined(function(timeout_threshold: 1_000), @epoch, now(10))
      assert {detector, [{:retry, @epoch}]} = tick(detector, 1_051)
      assert due(detector) == 2_051
    end

    test "that hangs before its first answer is called anew, as long as somebody waits" do
      detector = function(patient: true, timeout_threshold: 100)
      assert {detector, [{:ping, timestamp}]} = tick(detector, 100)
      assert timestamp == @epoch + 100
      assert %{status: :unknown, missed_heartbeats: 0, pings_sent: 2} = health(detector, 100)
    end
  end
end
