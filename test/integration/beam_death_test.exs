defmodule Snakepit.BeamDeathTest do
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, ProcScan, Program}

  @moduletag timeout: 180_000

  # A leader, a child in its group, a child in a session of its own, and a daemon that forked twice
  # and has an empty environment. `token` is how the judge knows them.
  defp family(token) do
    sleep = "sleep #{token}"
    "#{sleep} & setsid #{sleep} & (env -i setsid #{sleep} &) ; #{sleep}"
  end

  # A duration that nobody else sleeps for.
  defp token, do: "86400.#{System.unique_integer([:positive])}#{System.pid()}"

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
    assert [run] = File.ls!(beam.data_dir)
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
end
