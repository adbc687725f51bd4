defmodule Snakepit.LeaseTest do
  # What the guardian does with leases, with real processes.
  use Snakepit.Test.WorkerCase

  alias Snakepit.{Guardian, Native}
  alias Snakepit.Test.Beam

  defp begin(ask_ms, kill_ms) do
    lease = System.unique_integer([:positive])
    renew(lease, ask_ms, kill_ms)
    lease
  end

  defp renew(lease, ask_ms, kill_ms) do
    {:ok, now} = Native.clock_read()
    Guardian.renew_lease(lease, now + ask_ms, now + kill_ms)
  end

  # The clock of leases: after this nothing under them may live.
  defp await_clock(moment),
    do: eventually(fn -> match?({:ok, now} when now >= moment, Native.clock_read()) end)

  test "a process is asked to end when its lease is not renewed" do
    lease = begin(1_000, 60_000)
    {:ok, worker} = Worker.start_link(cmd: ["sleep", "60"], lease: lease)
    assert await_down(worker) == {:exit_signal, :sigterm}
  end

  test "one that does not end is killed, with everything that it has started" do
    path = temporary_path("child")
    lease = begin(500, 1_500)

    {:ok, worker} =
      Worker.start_link(
        cmd:
          bash("trap '' TERM; setsid sleep 60 & echo $! > #{path}; while :; do sleep 60; done"),
        lease: lease,
        stop_timeout: 60_000
      )

    {:ok, os_pid} = Worker.os_pid(worker)
    child = eventually(fn -> number_in(path) end)
    assert await_down(worker) == {:exit_signal, :sigkill}
    refute ProcScan.running?(os_pid)
    refute ProcScan.running?(child)
  end

  test "one whose lease is renewed lives" do
    {:ok, begun} = Native.clock_read()
    lease = begin(3_000, 3_500)
    {:ok, worker} = Worker.start_link(cmd: ["sleep", "60"], lease: lease)
    renew(lease, 600_000, 600_000)
    await_clock(begun + 4_000)
    assert {:ok, os_pid} = Worker.os_pid(worker)
    assert ProcScan.running?(os_pid)
    assert Worker.stop(worker) == :ok
  end

  test "nothing is executed under a lease that is over or was never begun" do
    path = temporary_path("executed")
    {:ok, now} = Native.clock_read()
    over = begin(0, 0)
    await_clock(now + 1)

    for lease <- [over, System.unique_integer([:positive])] do
      assert {:error, %Error{step: :lease} = error} =
               Worker.start_link(cmd: ["touch", path], lease: lease)

      assert Exception.message(error) =~ "lease was over"
    end

    # Without one it runs.
    {:ok, worker} = Worker.start_link(cmd: ["touch", path])
    await_down(worker)
    assert File.exists?(path)
  end

  test "one that waits at its gate until its lease is over is never executed" do
    path = temporary_path("executed")
    command = Snakepit.Command.new!(cmd: ["touch", path], lease: begin(300, 300))
    {:ok, child} = Guardian.spawn(command, worker_id: "late")
    eventually(fn -> not ProcScan.running?(child.os_pid) end)
    assert {:error, %Error{step: :lease}} = Guardian.release(child)
    refute File.exists?(path)
  end

  test "a BEAM that is stopped for longer than the lease has no process when it wakes, and knows" do
    beam = Beam.start()

    os_pid =
      Beam.run(beam, """
      (fn ->
        {:ok, now} = Snakepit.Native.clock_read()
        Snakepit.Guardian.renew_lease(1, now + 2_000, now + 2_500)
        {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "60"], lease: 1, id: "leased")
        Process.unlink(worker)
        Process.register(worker, :leased)
        Snakepit.Worker.os_pid!(worker)
      end).()
      """)

    leased = ProcScan.stat(os_pid)
    Beam.kill(beam, "STOP")
    eventually(fn -> ProcScan.stat(beam.os_pid).state == "T" end)
    eventually(fn -> not ProcScan.running?(leased) end)
    assert ProcScan.stat(beam.os_pid).state == "T"
    Beam.kill(beam, "CONT")
    eventually(fn -> Beam.run(beam, "Process.whereis(:leased)") == nil end)
  end
end
