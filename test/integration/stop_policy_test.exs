defmodule Snakepit.StopPolicyTest do
  # How a worker is asked to end, and for how long it is waited for, whatever the ending.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  # Longer than any grace period of the configuration here, and shorter than the worker's own.
  @config [watchdog: [grace_period_ms: 100], cleanup_on_stop_timeout_ms: 100]

  defp path, do: Path.join(Beam.temporary_directory(), "notes")

  # Says when it is asked, with the right signal, and when it has finished, so many seconds later.
  defp careful(path, seconds) do
    finish = "echo asked >> #{path}; sleep #{seconds}; echo done >> #{path}; exit 0"
    ["bash", "-c", "trap '#{finish}' INT; trap '' TERM; echo up; while :; do sleep 0.02; done"]
  end

  defp start_worker(beam, path, seconds \\ 1) do
    options = [
      cmd: careful(path, seconds),
      ready: {:output, "up"},
      stop_signal: :sigint,
      stop_timeout: 60_000
    ]

    code = """
    Process.flag(:trap_exit, true)
    {:ok, worker} = Snakepit.Worker.start_link(#{inspect(options)})
    Snakepit.Worker.os_pid!(worker)
    """

    Beam.run(beam, code)
  end

  defp notes(path), do: path |> File.read!() |> String.split()

  test "its own signal and time hold when the BEAM dies" do
    for ending <- [&Beam.kill/1, &Beam.tell(&1, "System.halt(0)")] do
      path = path()
      beam = Beam.start(@config)
      os_pid = start_worker(beam, path)
      ending.(beam)
      eventually(fn -> not ProcScan.running?(os_pid) end, 20_000)
      assert notes(path) == ["asked", "done"]
    end
  end

  test "and when everything is ended, or the application stops" do
    for ending <- [
          "{:ok, %{killed: 0}} = Snakepit.cleanup()",
          ":ok = Application.stop(:snakepit)"
        ] do
      path = path()
      beam = Beam.start(@config)
      os_pid = start_worker(beam, path)
      Beam.run(beam, ending)
      refute ProcScan.running?(os_pid)
      assert notes(path) == ["asked", "done"]
      Beam.kill(beam)
    end
  end

  test "and for the next BEAM, which waits for the guardian of the last" do
    path = path()
    beam = Beam.start(@config)
    os_pid = start_worker(beam, path)
    Beam.kill(beam)
    next = Beam.start([data_dir: beam.data_dir] ++ @config)
    refute ProcScan.running?(os_pid)
    assert notes(path) == ["asked", "done"]
    Beam.kill(next)
  end

  test "unless somebody says how long it may take" do
    for ending <- [
          "{:ok, %{killed: killed}} = Snakepit.cleanup(timeout: 2_000)",
          "Snakepit.run_as_script(fn -> :ok end, shutdown_timeout: 2_000)"
        ] do
      path = path()
      beam = Beam.start(@config)
      # Enough time to say that it was asked, and by far not to finish.
      os_pid = start_worker(beam, path, 30)
      Beam.run(beam, ending <> "\n:ok")
      refute ProcScan.running?(os_pid)
      assert notes(path) == ["asked"]
      Beam.kill(beam)
    end
  end

  # A leader, one in its group and one in a session of its own. Each notes when it has ended; the leader when
  # so many of the others have, and a moment later, so that one more would be seen.
  defp family(path, others) do
    member = fn name ->
      "trap 'echo #{name} >> #{path}; exit 0' TERM; " <>
        "echo >> #{path}.up; while :; do sleep 0.02; done"
    end

    up = "until [ $(cat #{path}.up | wc -l) = 2 ]; do sleep 0.01; done; echo up; "
    same = "bash -c \"#{member.("same")}\" & "
    other = "setsid bash -c \"#{member.("other")}\" & "
    ended = "until [ $(cat #{path} | wc -l) -ge #{others} ]; do sleep 0.02; done; sleep 0.3"
    leader = "trap '#{ended}; echo leader >> #{path}; exit 0' TERM; "
    touch = ": > #{path}.up; : > #{path}; "
    ["bash", "-c", touch <> same <> other <> leader <> up <> "while :; do sleep 0.02; done"]
  end

  for {mode, others, orders} <- [
        # The leader ends when both have: one that is not asked keeps it until it is killed.
        {:tree, 2, [["same", "other", "leader"], ["other", "same", "leader"]]},
        {:group, 1, [["same", "leader", "other"]]},
        {:leader, 0, [["leader", "same", "other"], ["leader", "other", "same"]]},
        # The others are killed, and cannot note anything.
        {:mixed, 0, [["leader"]]}
      ] do
    test "with kill_mode: #{inspect(mode)} the signal goes there first, and to the rest afterwards" do
      path = path()

      {:ok, worker} =
        Snakepit.Worker.start_link(
          cmd: family(path, unquote(others)),
          ready: {:output, "up"},
          kill_mode: unquote(mode),
          stop_timeout: 30_000
        )

      assert Snakepit.Worker.stop(worker) == :ok
      assert notes(path) in unquote(orders)
    end
  end

  test "what a program leaves behind has the time to end too" do
    path = path()

    script = fn seconds ->
      left =
        "trap 'sleep #{seconds}; echo done > #{path}; exit 0' TERM; : > #{path}.up; while :; do sleep 0.02; done"

      wait = "until [ -e #{path}.up ]; do sleep 0.01; done"
      "bash -c \"#{left}\" > /dev/null 2>&1 & #{wait}; echo ended"
    end

    options = [stop_timeout: 20_000]
    assert Snakepit.cmd("sh", ["-c", script.(0.5)], options) == {"ended\n", 0}
    assert notes(path) == ["done"]

    # But not longer than the whole of it may take.
    File.rm!(path)
    File.rm!(path <> ".up")
    options = [timeout: 3_000, stop_timeout: 60_000]
    {time, answer} = :timer.tc(fn -> Snakepit.cmd("sh", ["-c", script.(60)], options) end)
    assert answer == {"ended\n", 0}
    assert time < 30_000_000
    refute File.exists?(path)
  end
end
