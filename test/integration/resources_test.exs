defmodule Snakepit.ResourcesTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Exhaustion, Family, LogFile, ProcScan, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000

  defp guardian(beam), do: Beam.run(beam, "Snakepit.Guardian.os_pid()")

  # The soft limit only: lifting a hard one needs rights that root in a container may not have.
  defp limit(os_pid, resource, soft, wrapper \\ []) do
    [program | arguments] = wrapper ++ ~w(prlimit --pid #{os_pid} --#{resource}=#{soft}:)
    {_output, 0} = System.cmd(program, arguments)
  end

  defp exhaust(beam), do: Beam.call(beam, Exhaustion, :exhaust)

  # Nothing is left of what failed, what ran before runs on, and with the limit lifted it all works.
  defp assert_recovers(beam, guardian, family, lift) do
    assert length(Family.members(family)) == 4
    assert guardian(beam) == guardian
    {:ok, count} = info(beam)
    running = length(Beam.call(beam, Exhaustion, :running))
    assert count == running + 1

    # It does not wear itself out trying: what it does in one second is next to nothing.
    before = ticks(guardian)

    receive do
      :never -> :ok
    after
      1_000 -> :ok
    end

    assert ticks(guardian) - before < 20

    lift.()
    assert {:ok, _child} = Beam.call(beam, Exhaustion, :attempt)

    assert Beam.call(beam, Exhaustion, :stop_all) == []
    assert length(Family.members(family)) == 4

    Beam.kill(beam)
    eventually(fn -> not ProcScan.running?(guardian) end, 10_000)
    assert Family.members(family) == []
  end

  defp info(beam) do
    Beam.run(beam, "with {:ok, info} <- Snakepit.Guardian.info(), do: {:ok, info.children}")
  end

  # Hundredths of a second of processor time.
  defp ticks(os_pid) do
    [_, rest] = String.split(File.read!("/proc/#{os_pid}/stat"), ") ")
    fields = String.split(rest, " ")
    String.to_integer(Enum.at(fields, 11)) + String.to_integer(Enum.at(fields, 12))
  end

  defp start(wrapper) do
    beam = WrappedBeam.start(wrapper: wrapper, config: [watchdog: [grace_period_ms: 200]])
    family = Family.token()
    assert %{os_pid: _} = Beam.call(beam, Family, :launch, [family])
    eventually(fn -> length(Family.members(family)) == 4 end)
    {beam, guardian(beam), family}
  end

  @tag :root
  test "no more processes: says fork and eagain, and works again when there may be more" do
    # A user that nobody else is: the limit counts everything that it runs.
    uid = "#{56_000 + rem(String.to_integer(System.pid()), 1_000)}"
    bystanders = Family.bystanders()
    as_user = ~w(setpriv --reuid #{uid} --regid #{uid} --clear-groups)
    {beam, guardian, family} = start(as_user)
    tasks = length(Path.wildcard("/proc/#{beam.os_pid}/task/*"))
    [_, before] = Regex.run(~r/processes +(\d+)/, File.read!("/proc/#{guardian}/limits"))
    limit(guardian, "nproc", tasks + 60, as_user)

    assert {{:fork, :eagain}, count} = exhaust(beam)
    assert count > 0
    # Again and again, not only the first time.
    for _more <- 1..3, do: assert({{:fork, :eagain}, _count} = exhaust(beam))
    lift = fn -> limit(guardian, "nproc", before, as_user) end
    assert_recovers(beam, guardian, family, lift)
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  # With 3 there is room for a child and none to open it by.
  for spare <- [3, 20, 21, 22] do
    @tag :root
    test "no more descriptors, with #{spare} to spare: says emfile, and works again later" do
      bystanders = Family.bystanders()
      {beam, guardian, family} = start(["env"])
      open = length(File.ls!("/proc/#{guardian}/fd"))
      [_, hard] = Regex.run(~r/open files +\d+ +(\d+)/, File.read!("/proc/#{guardian}/limits"))
      limit(guardian, "nofile", open + unquote(spare))

      assert {{step, :emfile}, count} = exhaust(beam)
      assert step in [:fork, :stdio, :execve]
      assert count > 0 or unquote(spare) < 10

      # Again and again, not only the first time.
      for _more <- 1..3 do
        assert {{step, :emfile}, more} = exhaust(beam)
        assert step in [:fork, :stdio, :execve]
        assert more in count..(count + 20)
      end

      lift = fn -> limit(guardian, "nofile", hard) end
      assert_recovers(beam, guardian, family, lift)
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  @tag :root
  test "a guardian without descriptors ends what a worker leaves behind all the same" do
    {beam, guardian, _family} = start(["env"])
    go = Path.join(Beam.temporary_directory(), "go")
    token = Family.token()

    # The daemon is made in the last moment of the worker's life, so that nobody knows of it yet, and does
    # not end when asked.
    script =
      "while [ ! -e #{go} ]; do sleep 0.01; done; " <>
        "(trap '' TERM; : > #{go}.up; exec env -i setsid sleep #{token}) & " <>
        "until [ -e #{go}.up ]; do sleep 0.01; done"

    options = [cmd: ["sh", "-c", script], stop_timeout: 1_000]
    monitor = Beam.call(beam, Exhaustion, :start_worker, [options])
    [_, hard] = Regex.run(~r/open files +\d+ +(\d+)/, File.read!("/proc/#{guardian}/limits"))
    # One comes free with the worker: too few to read anything below /proc.
    limit(guardian, "nofile", length(File.ls!("/proc/#{guardian}/fd")))
    File.write!(go, "")
    eventually(fn -> ProcScan.with_argument(token) != [] end)

    assert Beam.call(beam, Exhaustion, :await_down, [monitor]) == :normal
    assert ProcScan.with_argument(token) == []
    limit(guardian, "nofile", hard)
    Beam.kill(beam)
  end

  @tag :root
  test "a BEAM without descriptors: each connection that cannot be had is an error, and none is left" do
    {beam, _guardian, _family} = start(["env"])
    [_, hard] = Regex.run(~r/open files +\d+ +(\d+)/, File.read!("/proc/#{beam.os_pid}/limits"))

    connect = fn -> Beam.call(beam, Exhaustion, :connect) end
    assert Beam.call(beam, Exhaustion, :load) == :ok
    assert connect.() == :ok
    open = length(File.ls!("/proc/#{beam.os_pid}/fd"))

    answers =
      for spare <- 0..8 do
        limit(beam.os_pid, "nofile", open + spare)
        connect.()
      end

    limit(beam.os_pid, "nofile", hard)
    assert Enum.uniq(answers) -- [:ok, {:connect, :emfile}] == []
    assert hd(answers) == {:connect, :emfile}
    assert List.last(answers) == :ok
    assert connect.() == :ok
    eventually(fn -> length(File.ls!("/proc/#{beam.os_pid}/fd")) <= open end)
    Beam.kill(beam)
  end

  test "a fork that fails each second is one warning, and another line says that it works again" do
    beam = Beam.start()
    Family.start(beam)
    guardian = guardian(beam)
    log = LogFile.open(beam, :warning)
    said = fn text -> length(String.split(log.(), text)) - 1 end
    open = "/proc/#{guardian}/fd" |> File.ls!() |> Enum.map(&String.to_integer/1) |> Enum.max()
    limit(guardian, "nofile", open + 1)
    # Those that wait are used up, and no more can be made.
    assert {{_step, :emfile}, _count} = exhaust(beam)
    eventually(fn -> said.("cannot fork") == 1 end)

    # It goes on trying.
    receive do
      :never -> :ok
    after
      3_500 -> :ok
    end

    assert said.("cannot fork") == 1
    assert said.("fork again") == 0
    limit(guardian, "nofile", 1_024)
    eventually(fn -> said.("can fork again") == 1 end)
    assert said.("cannot fork") == 1
  end
end
