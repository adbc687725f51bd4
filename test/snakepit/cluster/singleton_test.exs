defmodule Snakepit.Cluster.SingletonTest do
  # With a lease that the test gives and takes. `test/integration/singleton_test.exs` has several nodes.
  use Snakepit.Test.WorkerCase

  import ExUnit.CaptureLog

  alias Snakepit.Cluster.Singleton
  alias Snakepit.Test.ToldLease

  @long 600_000

  defp start(cmd, opts \\ []) do
    id = "singleton-#{System.unique_integer([:positive])}"
    opts = Keyword.merge([id: id, cmd: cmd, lease: {ToldLease, test: self()}], opts)
    {:ok, singleton} = Singleton.start_link(opts)
    assert_receive {:lease, lease, _test}
    {singleton, lease}
  end

  defp running(singleton) do
    eventually(fn ->
      with {:running, %{worker: worker}} <- Singleton.info(singleton),
           {:ok, os_pid} <- Worker.os_pid(worker),
           do: os_pid,
           else: (_waiting -> nil)
    end)
  end

  test "there is no process without the lease, and with it the program finds the token" do
    path = temporary_path("token")
    {singleton, lease} = start(sh("echo $SNAKEPIT_FENCING_TOKEN > #{path}; sleep 60"))
    assert Singleton.info(singleton) == :waiting
    ToldLease.hold(lease, 7, @long)
    assert eventually(fn -> number_in(path) end) == 7
    assert {:running, %{token: 7}} = Singleton.info(singleton)
    stop(singleton, lease, fn -> :ok end)
  end

  # The lease is given back after the end of the process, and the test looks at that moment.
  defp stop(singleton, lease, look) do
    Process.exit(singleton, :shutdown)
    looked = ToldLease.await_release(lease, look)
    assert await_down(singleton) == :shutdown
    looked
  end

  test "the lease is given back when the process is dead, and not before" do
    {singleton, lease} = start(bash("trap 'sleep 0.3; exit' TERM; while :; do sleep 0.05; done"))
    ToldLease.hold(lease, 1, @long)
    os_pid = running(singleton)
    assert stop(singleton, lease, fn -> ProcScan.running?(os_pid) end) == false
  end

  test "what renews the lease is passed on while the process ends" do
    {singleton, lease} =
      start(bash("trap 'sleep 3; exit 7' TERM; while :; do sleep 0.05; done"),
        stop_timeout: 60_000
      )

    ToldLease.hold(lease, 1, 1_500)
    os_pid = running(singleton)
    {:running, %{worker: worker}} = Singleton.info(singleton)
    monitor = Process.monitor(worker)
    Process.exit(singleton, :shutdown)
    ToldLease.hold(lease, 1, @long)
    ToldLease.await_release(lease, fn -> refute ProcScan.running?(os_pid) end)
    # It was not killed: it had the time that it takes.
    assert_receive {:DOWN, ^monitor, :process, _pid, :shutdown}
    await_down(singleton)
  end

  test "a lease that is not renewed ends the process, whatever this BEAM does, and it waits for the next" do
    {singleton, lease} = start(["sleep", "60"])
    ToldLease.hold(lease, 1, 1_500)
    os_pid = running(singleton)

    assert capture_log(fn ->
             ToldLease.await_release(lease, fn -> refute ProcScan.running?(os_pid) end)
             eventually(fn -> Singleton.info(singleton) == :waiting end)
           end) =~ "its lease was not renewed in time"

    # Of the lease that was given back, this is no more than an echo.
    ToldLease.hold(lease, 1, @long)
    assert Singleton.info(singleton) == :waiting
    ToldLease.hold(lease, 2, @long)
    running(singleton)
    stop(singleton, lease, fn -> :ok end)
  end

  test "a lease that was lost ends the process at once" do
    {singleton, lease} =
      start(bash("trap '' TERM; while :; do sleep 0.05; done"), stop_timeout: 60_000)

    ToldLease.hold(lease, 1, @long)
    os_pid = running(singleton)
    ToldLease.lose(lease)
    ToldLease.await_release(lease, fn -> refute ProcScan.running?(os_pid) end)
    eventually(fn -> Singleton.info(singleton) == :waiting end)
    Process.exit(singleton, :shutdown)
    await_down(singleton)
  end

  test "when the program ends by itself, the lease is given back and the reason is the worker's" do
    {singleton, lease} = start(sh("exit 3"), env: [{"PASSWORD", "hunter2"}])

    log =
      capture_log(fn ->
        ToldLease.hold(lease, 1, @long)
        ToldLease.await_release(lease, fn -> :ok end)
        assert await_down(singleton) == {:exit_status, 3}
      end)

    refute log =~ "hunter2"
  end

  test "one whose guardian is lost gives nothing back: what is left of it is not known" do
    fresh_supervisor()
    {singleton, lease} = start(["sleep", "60"])
    ToldLease.hold(lease, 1, @long)
    running(singleton)
    guardian = Snakepit.Guardian.os_pid()

    capture_log(fn ->
      kill(guardian)
      assert {:shutdown, {:not_known_to_be_dead, _why}} = await_down(singleton)
      eventually(fn -> Process.whereis(Snakepit.Guardian) end)
      eventually(fn -> match?({:ok, _}, Snakepit.Guardian.info()) end)
    end)
  end

  test "options are checked before anything starts" do
    for {opts, message} <- [
          {[cmd: ["true"]], ~r/:id/},
          {[id: "", cmd: ["true"]], ~r/:id/},
          {[id: "a", cmd: "true"], ~r/:cmd/},
          {[id: "a", cmd: ["true"], lease: 7], ~r/:lease/},
          {[id: "a", cmd: ["true"], leases: 7], ~r/unknown option :leases/}
        ] do
      assert_raise ArgumentError, message, fn -> Singleton.start_link(opts) end
    end

    # Without members there is nobody to grant it.
    assert_raise ArgumentError, ~r/cluster: \[members:/, fn ->
      Singleton.start_link(id: "a", cmd: ["true"])
    end
  end
end
