defmodule Snakepit.Guardian.EndingTest do
  use Snakepit.Test.GuardianCase

  alias Snakepit.{Guardian, Run}
  alias Snakepit.Test.{Beam, ProcScan}

  test "the end is reported with status, signal and usage" do
    assert {%{status: 3, signal: nil, core: false, max_rss_kb: rss}, ""} =
             await_exit(shell("exit 3"))

    assert rss > 0
    assert {%{status: nil, signal: :sigkill}, ""} = await_exit(shell("kill -KILL $$"))
  end

  test "the end comes at once, whoever still holds the output, and then the rest is ended" do
    child = shell("sleep 600 & setsid sleep 600 & (env -i setsid sleep 600 &); echo gone")
    {%{status: 0}, "gone\n"} = await_exit(child)
    # All of them end when asked.
    assert await_gone(child) == 0
    assert {:ok, %{adopted: 0}} = Guardian.info()
  end

  test "what a leader leaves behind has the grace period of the tree to end in" do
    saved = Path.join(Beam.temporary_directory(), "saved")

    child = shell("(setsid python3 #{fixture("saves_when_asked.py")} #{saved} &) ; sleep 600")
    eventually(fn -> Guardian.output_tail(child) == {:ok, "up\n"} end)
    assert :ok = Guardian.stop(child, timeout: 10_000)
    assert File.read!(saved) == "saved\n"
  end

  test "what does not end when its leader has is killed" do
    up = Path.join(Beam.temporary_directory(), "up")
    stubborn = "(trap '' TERM; : > #{up}; exec setsid sleep 600) & "
    wait = "until [ -e #{up} ]; do sleep 0.01; done; exit 0"
    child = shell(stubborn <> wait, stop_timeout: 100)
    {%{status: 0}, ""} = await_exit(child)
    assert await_gone(child) == 1
  end

  test "the end of one child leaves another's daemons alone" do
    keeper = shell("(env -i setsid sleep 600 &) ; echo ready; sleep 600")
    eventually(fn -> Guardian.output_tail(keeper) == {:ok, "ready\n"} end)
    eventually(fn -> match?({:ok, %{adopted: 1}}, Guardian.info()) end)
    other = shell("(env -i setsid sleep 600 &) ; exit 0")
    await_exit(other)
    assert await_gone(other) == 0
    assert {:ok, %{adopted: 1, children: 1}} = Guardian.info()
  end

  # As a service does whose workers daemonise, day after day.
  @tag :long
  test "the notes of adopted processes do not grow with how many there have been" do
    notes = Path.join(Run.current!().directory, "adopted")

    [first | _] =
      sizes =
      for _ <- 1..5 do
        child = shell("for i in $(seq 250); do (setsid sleep 600 &); done; sleep 600")
        eventually(fn -> match?({:ok, %{adopted: 250}}, Guardian.info()) end)
        :ok = Guardian.stop(child, timeout: 0)
        File.stat!(notes).size
      end

    assert Enum.max(sizes) <= 3 * first
  end

  test "stop asks, waits, and kills the tree of what does not listen" do
    polite = run!(["sleep", "600"])
    assert :ok = Guardian.stop(polite)
    refute ProcScan.running?(polite.os_pid)

    stubborn = stubborn(2)
    eventually(fn -> length(ProcScan.descendants(stubborn.os_pid)) == 3 end)
    tree = [stubborn.os_pid | ProcScan.descendants(stubborn.os_pid)]
    {time, :ok} = :timer.tc(fn -> Guardian.stop(stubborn, timeout: 300) end)
    assert div(time, 1000) >= 300
    refute Enum.any?(tree, &ProcScan.running?/1)
    assert :ok = Guardian.stop(stubborn)
  end

  test "a stopped process ends when asked" do
    child = run!(["sleep", "600"])
    :ok = Guardian.signal(child, :sigstop)
    eventually(fn -> ProcScan.stat(child.os_pid).state == "T" end)
    {time, :ok} = :timer.tc(fn -> Guardian.stop(child, timeout: 30_000) end)
    assert time < 15_000_000
  end

  test "signals reach the process, its group or its tree" do
    child = shell("sleep 600 & setsid sleep 600 & wait; sleep 600")
    eventually(fn -> length(ProcScan.descendants(child.os_pid)) == 2 end)
    [_, _] = below = ProcScan.descendants(child.os_pid)
    :ok = Guardian.signal(child, :sigstop, :tree)
    for os_pid <- below, do: eventually(fn -> ProcScan.stat(os_pid).state == "T" end)
    :ok = Guardian.signal(child, :sigcont, :tree)
    for os_pid <- below, do: eventually(fn -> ProcScan.stat(os_pid).state == "S" end)
    assert :ok = Guardian.stop(child)
    refute Enum.any?(below, &ProcScan.running?/1)
  end

  @tag :long
  test "stop_all gives everyone one grace period" do
    stubborn = for _ <- 1..20, do: stubborn(0)
    polite = for _ <- 1..20, do: run!(["sleep", "600"])
    {time, {:ok, counts}} = :timer.tc(fn -> Guardian.stop_all(timeout: 1_000) end)
    # Each stubborn shell has a `sleep` below it that is as stubborn, and may end by itself once
    # that has been killed.
    # Who is reaped by its own parent, in the last moment of that one, is not counted.
    assert (counts.stopped + counts.killed) in 40..60
    assert counts.stopped >= 20 and counts.killed >= 20
    # One after the other they would take twenty.
    assert div(time, 1000) in 1_000..10_000
    refute Enum.any?(stubborn ++ polite, &ProcScan.running?(&1.os_pid))
    assert Guardian.stop_all() == {:ok, %{stopped: 0, killed: 0}}
  end

  test "an owner that dies takes its process along" do
    test = self()

    owner =
      spawn(fn ->
        send(test, {:child, shell("setsid sleep 600 & sleep 600")})
        receive(do: (:never -> :ok))
      end)

    assert_receive {:child, child}, 5_000
    eventually(fn -> length(ProcScan.descendants(child.os_pid)) == 2 end)
    tree = [child.os_pid | ProcScan.descendants(child.os_pid)]
    Process.exit(owner, :kill)
    eventually(fn -> not Enum.any?(tree, &ProcScan.running?/1) end)
  end

  @tag :root
  @tag :long
  test "a fork bomb is ended" do
    uid = 55_000 + rem(String.to_integer(System.pid()), 1_000)
    opts = [user: uid, rlimits: [nproc: 200]]
    # It ends with its standard input, so that is held open by one that is not asked to end.
    child = shell("setsid sleep 600 | python3 #{fixture("fork_bomb.py")}", opts)
    eventually(fn -> length(ProcScan.of_user(uid)) > 150 end)
    assert :ok = Guardian.stop(child, timeout: 50)
    assert ProcScan.of_user(uid) == []
  end
end
