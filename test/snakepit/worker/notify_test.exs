defmodule Snakepit.Worker.NotifyTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Beam, Program}
  alias Snakepit.Worker.Notify.Message

  doctest Message

  @python System.find_executable("python3")
  @systemd_notify System.find_executable("systemd-notify")

  defp start(messages, opts) do
    Worker.start_link(
      [cmd: [@python, fixture("notifies.py") | messages], ready: :notify, stdio: :pipe] ++ opts
    )
  end

  defp start!(messages, opts \\ []) do
    {:ok, worker} = start(messages, opts)
    worker
  end

  defp say(worker, message), do: :ok = Worker.write(worker, message <> "\n")
  defp said(worker), do: Worker.info!(worker).notify

  # Messages are heard in their order: when this one is, those before it were.
  defp after_all(worker) do
    before = said(worker).watchdogs
    say(worker, "WATCHDOG=1")
    eventually(fn -> said(worker).watchdogs == before + 1 end)
    said(worker)
  end

  defp environment(os_pid) do
    for pair <- String.split(File.read!("/proc/#{os_pid}/environ"), <<0>>, trim: true),
        [name, value] = String.split(pair, "=", parts: 2),
        into: %{},
        do: {name, value}
  end

  defp end_of(worker) do
    monitor = Process.monitor(worker)
    assert_receive {:DOWN, ^monitor, :process, ^worker, reason}
    reason
  end

  test "it is ready when it says so, and its status is known" do
    worker = start!(["STATUS=warming up", "READY=1\\nSTATUS=listening"])
    assert %{state: :ready, text: "listening"} = said(worker)
    say(worker, "RELOADING=1\\nMAINPID=1\\nSTATUS=über\\nX")
    assert %{state: :reloading, text: "über"} = after_all(worker)
    say(worker, "READY=1")
    assert %{state: :ready, text: "über"} = after_all(worker)
    say(worker, "STOPPING=1")
    assert %{state: :stopping} = after_all(worker)
  end

  test "one that does not say so in time has not started" do
    assert {:error, %Error{reason: :not_ready}} = start(["STATUS=never"], ready_timeout: 300)

    assert {:error, %Error{reason: :exit_status}} =
             Worker.start_link(cmd: ["true"], ready: :notify)
  end

  test "its children and daemons may speak for it, and strangers may not" do
    worker = start!(["READY=1"])
    name = environment(Worker.os_pid!(worker))["NOTIFY_SOCKET"]

    stranger = ["STATUS=a stranger", "STOPPING=1", "WATCHDOG=trigger"]
    env = [{~c"NOTIFY_SOCKET", String.to_charlist(name)}]
    Program.start("python3", [fixture("notifies.py") | stranger], env: env)
    # It goes to its input when it has said all of this.
    eventually(fn -> stranger_waits?(stranger) end)
    assert %{state: :ready, text: nil} = after_all(worker)

    for kind <- ["fork", "daemon"] do
      say(worker, "#{kind} STATUS=#{kind}")
      eventually(fn -> said(worker).text == kind end)
    end
  end

  defp stranger_waits?(arguments) do
    Enum.any?(ProcScan.with_argument(hd(arguments)), fn os_pid ->
      # In read(2) of its input, which is a pipe of the test's.
      match?({:ok, "pipe_read" <> _}, File.read("/proc/#{os_pid}/wchan")) or
        match?({:ok, "anon_pipe_read" <> _}, File.read("/proc/#{os_pid}/wchan"))
    end)
  end

  test "descriptors that come are closed, and a barrier ends" do
    worker = start!(["READY=1"])
    beam = System.pid()
    before = length(File.ls!("/proc/#{beam}/fd"))
    for _ <- 1..50, do: say(worker, "fds BARRIER=1")
    say(worker, "STATUS=all were closed")
    eventually(fn -> said(worker).text == "all were closed" end)
    assert length(File.ls!("/proc/#{beam}/fd")) < before + 50
  end

  test "one that does not say WATCHDOG=1 in time is ended, and one that does is not" do
    silent = start!(["READY=1"], watchdog: 200)
    assert end_of(silent) == :heartbeat_timeout

    worker = start!(["READY=1"], watchdog: 600_000)
    os_pid = Worker.os_pid!(worker)
    assert environment(os_pid)["WATCHDOG_USEC"] == "600000000"
    first = Insides.watchdog_timer(worker)
    assert %{status: :unknown, last_pong_ms_ago: nil} = Worker.info!(worker).heartbeat
    after_all(worker)

    assert %{status: :healthy, pongs_received: 1, last_pong_ms_ago: ago} =
             Worker.info!(worker).heartbeat

    assert is_integer(ago)
    second = Insides.watchdog_timer(worker)
    assert first != second and is_reference(second)
    # What it says itself counts from then on.
    say(worker, "WATCHDOG_USEC=200000")
    assert end_of(worker) == :heartbeat_timeout
    refute ProcScan.running?(os_pid)
  end

  test "one that stops needs no watchdog, and one that says that it is broken is ended at once" do
    worker = start!(["READY=1"], watchdog: 600_000)
    say(worker, "STOPPING=1")
    eventually(fn -> said(worker).state == :stopping end)
    assert Insides.watchdog_timer(worker) == nil

    broken = start!(["READY=1"], watchdog: 600_000)
    say(broken, "WATCHDOG=trigger")
    assert end_of(broken) == :heartbeat_timeout
  end

  @tag :long
  test "its time to start and to end is extended when it asks for that" do
    more = "EXTEND_TIMEOUT_USEC=60000000"

    worker =
      start!([more, "sleep 9", "READY=1", "--term", more, "sleep 6", "STATUS=ending"],
        ready_timeout: 8_000,
        stop_timeout: 5_000
      )

    {:ok, {child, _scope}} = GenServer.call(worker, :child)
    begun = System.monotonic_time(:millisecond)
    assert Worker.stop(worker) == :ok
    # It was not killed after five.
    assert System.monotonic_time(:millisecond) - begun >= 6_000
    refute ProcScan.running?(child.os_pid)
  end

  @tag skip:
         if(@systemd_notify,
           do: false,
           else: "there is no systemd-notify (script/bootstrap --all)"
         )
  test "systemd-notify in a script" do
    script = "#{@systemd_notify} --status='from a script'; #{@systemd_notify} --ready; sleep 600"
    {:ok, worker} = Worker.start_link(cmd: sh(script), ready: :notify)
    assert %{state: :ready, text: "from a script"} = said(worker)
  end

  test "the socket of the BEAM's own service manager is not passed on" do
    env = [{"NOTIFY_SOCKET", "/nowhere"}, {"WATCHDOG_USEC", "1"}, {"WATCHDOG_PID", "1"}]
    beam = Beam.start([], env: env)
    shown = Beam.run(beam, ~s|Snakepit.cmd("env", [])|)
    assert {text, 0} = shown
    refute text =~ ~r/^(NOTIFY_SOCKET|WATCHDOG_)/m
    own = Beam.run(beam, ~s|Snakepit.cmd("env", [], env: [{"NOTIFY_SOCKET", "/own"}])|)
    assert {text, 0} = own
    assert text =~ ~r|^NOTIFY_SOCKET=/own$|m
  end
end
