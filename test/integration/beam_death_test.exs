defmodule Snakepit.BeamDeathTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Native
  alias Snakepit.Test.{BareGuardian, Beam, Family, ProcScan, Program}

  @moduletag :long
  @moduletag timeout: 120_000

  # A leader, a child in its group, a child in a session of its own, and a daemon that forked twice
  # and has an empty environment. `token` is how the judge knows them.
  defp family(token) do
    sleep = "sleep #{token}"
    "#{sleep} & setsid #{sleep} & (env -i setsid #{sleep} &) ; #{sleep}"
  end

  defp kernel do
    [major, minor | _] = "/proc/sys/kernel/osrelease" |> File.read!() |> String.split([".", "-"])
    {String.to_integer(major), String.to_integer(minor)}
  end

  defp token, do: Family.token()

  defp start_families(beam, count, token) do
    code = """
    command = Snakepit.Command.new!(cmd: ["sh", "-c", #{inspect(family(token))}])

    owner = spawn(fn ->
      children = for n <- 1..#{count} do
        {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: "w\#{n}")
        :ok = Snakepit.Guardian.release(child)
        child.os_pid
      end
      receive do {:ask, from} -> send(from, children) end
      receive do :never -> :ok end
    end)

    send(owner, {:ask, self()})
    receive do children -> children end
    """

    leaders = Beam.run(beam, code)
    assert length(leaders) == count
    # Each family has four members, the leader's own sleep being the fourth.
    eventually(fn -> length(ProcScan.with_argument(token)) == 4 * count end, 60_000)
    leaders
  end

  defp guardian_of(beam), do: Beam.run(beam, "Snakepit.Guardian.os_pid()")

  defp bystanders do
    # The same program, and one that was started the same way, below this BEAM.
    stranger = token()
    for _ <- 1..3, do: Program.start("sleep", [stranger])
  end

  defp assert_all_gone(token, leaders, guardian, bystanders) do
    eventually(fn -> not ProcScan.running?(guardian) end, 20_000)
    assert ProcScan.with_argument(token) == []
    refute Enum.any?(leaders, &ProcScan.running?/1)
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  # The guardian's word on a BEAM that died; a BEAM that stopped in order has the last word itself.
  defp assert_record(beam, how) do
    assert [run] = Beam.run_ids(beam.data_dir)
    file = if how == :term, do: "history", else: "obituary"
    assert File.exists?(Path.join([beam.data_dir, run, file]))
  end

  for {name, count, how} <- [
        {"kill -9 of the BEAM with 200 families", 200, :kill},
        {"System.halt(0)", 20, :halt},
        {"SIGTERM to the BEAM", 20, :term},
        {"kill -9 of erl_child_setup", 20, :child_setup}
      ] do
    test "after #{name} nothing is left, and nobody else is touched" do
      bystanders = bystanders()
      token = token()
      beam = Beam.start(watchdog: [grace_period_ms: 2_000])
      guardian = guardian_of(beam)
      leaders = start_families(beam, unquote(count), token)
      die(unquote(how), beam)
      Beam.await_end(beam)
      assert_all_gone(token, leaders, guardian, bystanders)
      assert_record(beam, unquote(how))
    end
  end

  defp die(:kill, beam), do: Beam.kill(beam, "KILL")
  defp die(:halt, beam), do: Beam.tell(beam, "System.halt(0)")
  defp die(:term, beam), do: Beam.kill(beam, "TERM")

  defp die(:child_setup, beam) do
    [helper] =
      for %{os_pid: os_pid, parent: parent} <- ProcScan.all(),
          parent == beam.os_pid,
          File.read("/proc/#{os_pid}/comm") == {:ok, "erl_child_setup\n"},
          do: os_pid

    {_output, 0} = System.cmd("kill", ["-KILL", "#{helper}"])
  end

  test "the application stops only when nothing is left" do
    beam = Beam.start(watchdog: [grace_period_ms: 2_000])
    token = token()
    start_families(beam, 10, token)
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    assert ProcScan.with_argument(token) == []
  end

  test "what ignores SIGTERM is killed after the grace period" do
    beam = Beam.start(watchdog: [grace_period_ms: 300])
    guardian = guardian_of(beam)
    token = token()
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep #{token}' & sleep #{token}"

    Beam.run(beam, """
    {:ok, child} = Snakepit.Guardian.spawn(Snakepit.Command.new!(cmd: ["sh", "-c", #{inspect(script)}]))
    :ok = Snakepit.Guardian.release(child)
    """)

    eventually(fn -> length(ProcScan.with_argument(token)) == 2 end)
    Beam.kill(beam, "KILL")
    eventually(fn -> not ProcScan.running?(guardian) end, 20_000)
    assert ProcScan.with_argument(token) == []
  end

  # A process that is killed gives its memory back before it closes its files. Its threads end first.
  for name <- ["1_scheduler", "erts_sched_1"] do
    test "the end of a thread #{name} of the BEAM is the end of the BEAM" do
      fixture = Path.expand("../fixtures/loses_a_scheduler.py", __DIR__)
      python = System.find_executable("python3")
      options = [:binary, :exit_status, line: 80, args: [fixture, unquote(name)]]
      port = Port.open({:spawn_executable, python}, options)
      assert_receive {^port, {:data, {:eol, text}}}, 10_000
      beam_pid = String.to_integer(text)

      guardian = BareGuardian.start()
      BareGuardian.tell(guardian, BareGuardian.hello(guardian, %{beam_pid: beam_pid}))
      {welcome, guardian} = BareGuardian.event(guardian, :welcome)
      assert elem(welcome, 0) == :welcome
      assert ProcScan.running?(beam_pid)

      if kernel() >= {6, 9} do
        Port.command(port, "now\n")
        {_events, 0} = BareGuardian.events_until_end(guardian)
        assert ProcScan.running?(beam_pid)
        assert Native.obituary_read(guardian.directory).detected_by == "thread"
        Port.command(port, "end\n")
      else
        # Before Linux 6.9 there is only the end of the process.
        Port.command(port, "now\nend\n")
        {_events, 0} = BareGuardian.events_until_end(guardian)
        assert Native.obituary_read(guardian.directory).detected_by == "pidfd"
      end

      assert_receive {^port, {:exit_status, 0}}, 10_000
    end
  end

  # Four trees: one process; two that ignore SIGTERM; two daemons, one without an environment; and a shell
  # that waits for its child, so that it is the shell that reaps it.
  test "the obituary has every process that was there, also one that its own parent has reaped" do
    token = Family.token()
    # Long enough for all that end when they are asked, on any machine.
    beam = Beam.start(watchdog: [grace_period_ms: 2_000])

    scripts = [
      "exec sleep #{token}",
      "trap '' TERM; sleep #{token} & exec sleep #{token}",
      "(setsid env -i sleep #{token} &); (setsid sleep #{token} &); exec sleep #{token}",
      "trap : TERM; sleep #{token} & wait; wait; exit 0"
    ]

    leaders =
      for {script, number} <- Enum.with_index(scripts) do
        cmd = inspect(["sh", "-c", script])
        start = "Snakepit.Test.Workers.start(\"w#{number}\", #{cmd})"
        {:ok, os_pid} = Beam.run(beam, "with {:ok, child} <- #{start}, do: {:ok, child.os_pid}")
        os_pid
      end

    eventually(fn -> length(Family.members(token)) == 7 end)
    there = Enum.sort(Enum.uniq(leaders ++ Family.members(token)))
    assert length(there) == 8
    [run_id] = Beam.run_ids(beam.data_dir)
    directory = Path.join(beam.data_dir, run_id)
    Beam.kill(beam)
    eventually(fn -> File.exists?(Path.join(directory, "obituary")) end)

    obituary = Snakepit.Native.obituary_read(directory)
    assert Enum.sort(for process <- obituary.processes, do: process.os_pid) == there
    assert Enum.count(obituary.processes, & &1.killed) == 2

    assert Enum.frequencies(for process <- obituary.processes, do: process.worker_id) ==
             %{"w0" => 1, "w1" => 2, "w2" => 3, "w3" => 2}

    assert Family.members(token) == []
  end
end
