defmodule Snakepit.HeartbeatMonitor.PollerTest do
  # The test is the worker, and answers the pings. Not async: it kills the poller of all.
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually
  import Snakepit.Test.Lifelines

  alias Snakepit.HeartbeatMonitor
  alias Snakepit.HeartbeatMonitor.Poller

  setup do
    Process.flag(:trap_exit, true)
    :ok
  end

  defp start(opts) do
    defaults = [worker: self(), worker_id: "test", ping_interval: 60_000]
    {:ok, monitor} = HeartbeatMonitor.start_link(Keyword.merge(defaults, opts))
    monitor
  end

  # One whose pings the test answers. Unless a test says otherwise there is no second ping.
  defp start_with_lifeline(opts \\ []) do
    {ours, theirs} = lifeline()
    {start([socket: ours] ++ opts), theirs}
  end

  defp health(monitor), do: HeartbeatMonitor.get_health_status(monitor)
  defp now, do: System.monotonic_time(:millisecond)

  defp kill_poller do
    poller = Process.whereis(Poller)
    ref = Process.monitor(poller)
    Process.exit(poller, :kill)
    assert_receive {:DOWN, ^ref, :process, ^poller, :killed}, 5_000
  end

  defp without_poller(fun) do
    :ok = Supervisor.terminate_child(Snakepit.Supervisor, Poller)

    try do
      fun.()
    after
      {:ok, _poller} = Supervisor.restart_child(Snakepit.Supervisor, Poller)
    end
  end

  test "the first pong is passed on when it comes, and only the first" do
    {monitor, theirs} = start_with_lifeline()
    timestamp = await_ping(theirs)
    refute_received {HeartbeatMonitor, ^monitor, :first_pong}
    answer(theirs, timestamp)
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    :ok = HeartbeatMonitor.force_ping(monitor)
    answer(theirs, await_ping(theirs))
    eventually(fn -> health(monitor).pongs_received == 2 end)
    refute_received {HeartbeatMonitor, ^monitor, :first_pong}
  end

  test "a pong that nobody waits for is seen by who asks for the health" do
    {monitor, theirs} = start_with_lifeline()
    answer(theirs, await_ping(theirs))
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    :ok = HeartbeatMonitor.force_ping(monitor)
    timestamp = await_ping(theirs)
    assert %{pings_sent: 2, pongs_received: 1, status: :healthy} = health(monitor)
    answer(theirs, timestamp)
    assert %{pings_sent: 2, pongs_received: 2, last_latency_ms: ms} = health(monitor)
    assert ms in 0..5_000
  end

  test "a ping that is forced while another is in flight is not sent" do
    {monitor, theirs} = start_with_lifeline()
    first = await_ping(theirs)
    assert HeartbeatMonitor.force_ping(monitor) == :ok
    assert %{pings_sent: 1} = health(monitor)
    answer(theirs, first)
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    assert HeartbeatMonitor.force_ping(monitor) == :ok
    assert %{pings_sent: 2} = health(monitor)
    await_ping(theirs)
  end

  test "a pong in pieces is one pong" do
    {monitor, theirs} = start_with_lifeline()
    timestamp = await_ping(theirs)
    {one, two} = String.split_at("PONG:#{timestamp}:#{timestamp}\n", 9)
    :ok = :socket.send(theirs, one)
    assert %{pongs_received: 0} = health(monitor)
    :ok = :socket.send(theirs, two)
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    assert %{pongs_received: 1, status: :healthy} = health(monitor)
  end

  test "a pong behind much else is found, without anybody asking" do
    {monitor, theirs} = start_with_lifeline()
    timestamp = await_ping(theirs)
    flood = :binary.copy("x", 1_000_000)
    assert :socket.send(theirs, [flood, "\nPONG:#{timestamp}:#{timestamp}\n"], 5_000) == :ok
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    assert %{pongs_received: 1} = health(monitor)
  end

  test "a worker without pongs gets an exit signal from its monitor, and the lifeline is closed" do
    {monitor, theirs} = start_with_lifeline(timeout_threshold: 50, max_missed_heartbeats: 2)
    ref = Process.monitor(monitor)
    assert_receive {:EXIT, ^monitor, :heartbeat_timeout}, 5_000
    assert_receive {:DOWN, ^ref, :process, ^monitor, :normal}, 5_000
    await_closed(theirs)
  end

  test "one that does not answer does not keep others from being pinged" do
    {_silent, _theirs} = start_with_lifeline(ping_interval: 20)
    {monitor, theirs} = start_with_lifeline(ping_interval: 20)
    for _ <- 1..10, do: answer(theirs, await_ping(theirs))
    eventually(fn -> health(monitor).pongs_received == 10 end)
  end

  test "a monitor that has ended is forgotten, whatever was due" do
    poller = Process.monitor(Poller)
    {other, other_end} = start_with_lifeline()
    await_ping(other_end)
    watched = :ets.info(Poller, :size)
    threshold = 100

    {monitor, theirs} = start_with_lifeline(timeout_threshold: threshold)
    answer(theirs, await_ping(theirs))
    assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
    pinged_by = now()
    Process.exit(monitor, :shutdown)
    await_closed(theirs)
    eventually(fn -> :ets.info(Poller, :size) == watched end)

    # Beyond the time at which the pong would have been missed.
    eventually(fn -> now() > pinged_by + threshold end)
    assert %{pings_sent: 1} = health(other)
    refute_received {:DOWN, ^poller, :process, _pid, _reason}
  end

  describe "the lifeline is closed" do
    test "when the monitor is told to end" do
      {monitor, theirs} = start_with_lifeline()
      await_ping(theirs)
      Process.exit(monitor, :shutdown)
      await_closed(theirs)
    end

    for reason <- [:normal, :kill] do
      test "when the worker ends with #{inspect(reason)}, whoever has started the monitor" do
        worker = spawn(fn -> receive(do: (reason -> Process.exit(self(), reason))) end)
        {monitor, theirs} = start_with_lifeline(worker: worker)
        await_ping(theirs)
        ref = Process.monitor(monitor)
        send(worker, unquote(reason))
        assert_receive {:DOWN, ^ref, :process, ^monitor, :normal}, 5_000
        await_closed(theirs)
      end
    end

    test "and nobody else's is" do
      {monitor, theirs} = start_with_lifeline()
      {other, other_end} = start_with_lifeline()
      answer(other_end, await_ping(other_end))
      Process.exit(monitor, :shutdown)
      await_closed(theirs)
      :ok = HeartbeatMonitor.force_ping(other)
      answer(other_end, await_ping(other_end))
      eventually(fn -> health(other).pongs_received == 2 end)
    end
  end

  describe "when the poller dies" do
    test "the next one pings everybody, and the counts go on" do
      {monitor, theirs} = start_with_lifeline()
      answer(theirs, await_ping(theirs))
      assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000

      for n <- 2..4 do
        kill_poller()
        answer(theirs, await_ping(theirs))
        eventually(fn -> health(monitor).pongs_received == n end)
        assert %{pings_sent: ^n, missed_heartbeats: 0, status: :healthy} = health(monitor)
      end

      refute_received {HeartbeatMonitor, ^monitor, :first_pong}
    end

    test "a ping in flight is no miss, however long nobody looks for its pong" do
      threshold = 200
      opts = [timeout_threshold: threshold, max_missed_heartbeats: 1]
      {monitor, theirs} = start_with_lifeline(opts)
      answer(theirs, await_ping(theirs))
      assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
      :ok = HeartbeatMonitor.force_ping(monitor)

      without_poller(fn ->
        await_ping(theirs)
        pinged_by = now()
        eventually(fn -> now() > pinged_by + threshold end)
        # What the last one knew.
        assert %{pings_sent: 2, pongs_received: 1, missed_heartbeats: 0} = health(monitor)
        assert HeartbeatMonitor.force_ping(monitor) == :ok
      end)

      answer(theirs, await_ping(theirs))
      assert %{pings_sent: 3, pongs_received: 2, status: :healthy} = health(monitor)
      refute_received {:EXIT, ^monitor, _reason}
    end

    test "what it had read of a line does not spoil the next pong" do
      {monitor, theirs} = start_with_lifeline()
      await_ping(theirs)
      :ok = :socket.send(theirs, "the beginning of a line")
      assert %{pongs_received: 0} = health(monitor)
      kill_poller()
      answer(theirs, await_ping(theirs))
      assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
      assert %{pings_sent: 2, pongs_received: 1} = health(monitor)
    end

    test "a monitor that starts before the next one is pinged by it" do
      {monitor, theirs} =
        without_poller(fn ->
          {monitor, theirs} = start_with_lifeline()
          assert %{status: :unknown, pings_sent: 0} = health(monitor)
          {monitor, theirs}
        end)

      answer(theirs, await_ping(theirs))
      assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
      assert %{pings_sent: 1, pongs_received: 1} = health(monitor)
    end

    test "a monitor that the next one has found in its table is not pinged twice" do
      {monitor, theirs} = start_with_lifeline()
      await_ping(theirs)
      poller = Process.monitor(Poller)
      # As it comes from a monitor that starts at the same time as the poller.
      GenServer.cast(Poller, {:watch, monitor})
      assert %{pings_sent: 1} = health(monitor)
      Process.exit(monitor, :shutdown)
      await_closed(theirs)
      {other, _other_end} = start_with_lifeline()
      assert %{pings_sent: 1} = health(other)
      refute_received {:DOWN, ^poller, :process, _pid, _reason}
    end

    test "one that ends before the next one is forgotten, and others are pinged" do
      {monitor, theirs} = start_with_lifeline()
      {other, other_end} = start_with_lifeline()
      answer(other_end, await_ping(other_end))
      assert_receive {HeartbeatMonitor, ^other, :first_pong}, 5_000

      without_poller(fn ->
        ref = Process.monitor(monitor)
        Process.exit(monitor, :shutdown)
        assert_receive {:DOWN, ^ref, :process, ^monitor, :shutdown}, 5_000
        await_closed(theirs)
      end)

      poller = Process.monitor(Poller)
      answer(other_end, await_ping(other_end))
      assert %{pongs_received: 2} = health(other)
      refute_received {:DOWN, ^poller, :process, _pid, _reason}
    end

    test "a :ping function that hangs is called anew" do
      test = self()

      ping = fn ->
        send(test, {:called, self()})
        receive(do: (:go_on -> true))
      end

      monitor = start(ping: ping)
      assert_receive {:called, hanging}, 5_000
      ref = Process.monitor(hanging)
      kill_poller()
      assert_receive {:DOWN, ^ref, :process, ^hanging, :killed}, 5_000
      assert_receive {:called, called}, 5_000
      send(called, :go_on)
      assert_receive {HeartbeatMonitor, ^monitor, :first_pong}, 5_000
      assert %{pings_sent: 2, pongs_received: 1, missed_heartbeats: 0} = health(monitor)
    end
  end
end
