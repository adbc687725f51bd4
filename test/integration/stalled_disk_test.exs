defmodule Snakepit.StalledDiskTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.Beam

  @moduletag :long
  @moduletag timeout: 120_000

  # With one scheduler, whatever waits there stops the whole BEAM.
  @one_scheduler {"ELIXIR_ERL_OPTIONS", "+S 1:1"}
  @stall_ms 1_500
  @starts 20
  # As many as the guardian keeps waiting at the gate.
  @ahead 8

  defp on_disk(directory) do
    image = Path.join(Beam.temporary_directory(), "image")
    {_, 0} = System.cmd("truncate", ["-s", "16m", image])
    {_, 0} = System.cmd("mkfs.ext4", ["-q", image])
    script = "mount -o loop #{image} #{directory} && chmod 700 #{directory} && exec \"$@\""
    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  # As a snapshot of the volume does: whoever writes there waits in the kernel, and not even a signal
  # wakes it. The one who freezes it thaws it, whatever becomes of this test.
  defp freeze(beam, directory) do
    script = """
    trap : TERM
    fsfreeze -f #{directory} && echo frozen && read line
    fsfreeze -u #{directory}
    """

    arguments = ["-t", "#{beam.os_pid}", "-m", "timeout", "30", "sh", "-c", script]
    program = System.find_executable("nsenter")
    port = Port.open({:spawn_executable, program}, [:binary, :exit_status, args: arguments])
    assert_receive {^port, {:data, "frozen\n"}}
    port
  end

  defp thaw(port) do
    Port.command(port, "\n")
    assert_receive {^port, {:exit_status, 0}}
  end

  # How long a process that wants to run each millisecond had to wait at most, while as many start as
  # would occupy every thread that the BEAM has for files.
  defp starts_and_longest_pause(beam) do
    Beam.run(beam, """
    for number <- 1..#{@starts} do
      spawn(fn ->
        {"", 0} = Snakepit.cmd("true", [])
        Process.register(self(), :"done_\#{number}")
        receive do: (:never -> :ok)
      end)
    end

    tick = fn tick, last, worst, until ->
      receive do after 1 -> :ok end
      now = System.monotonic_time(:millisecond)
      worst = max(worst, now - last)
      if now < until, do: tick.(tick, now, worst, until), else: worst
    end

    begun = System.monotonic_time(:millisecond)
    worst = tick.(tick, begun, 0, begun + #{@stall_ms})
    # Another file system is not that disk's.
    {microseconds, {:ok, _}} = :timer.tc(fn -> File.read("/proc/self/stat") end)
    {worst, div(microseconds, 1000)}
    """)
  end

  defp done(beam) do
    Beam.run(beam, "Enum.count(1..#{@starts}, &Process.whereis(:\"done_\#{&1}\"))")
  end

  unless System.find_executable("mkfs.ext4") && System.find_executable("fsfreeze"),
    do: @tag(skip: "needs mkfs.ext4 and fsfreeze")

  @tag :root
  test "while the disk stalls the BEAM runs on, and what waited for it is done afterwards" do
    directory = Beam.temporary_directory()
    beam = Beam.start([data_dir: directory], wrapper: on_disk(directory), env: [@one_scheduler])
    frozen = freeze(beam, directory)

    {pause, reading} = starts_and_longest_pause(beam)
    # Nothing runs that is not recorded. Those that waited at the gate were.
    recorded = done(beam)
    thaw(frozen)

    # Whoever waits for that disk waits until it is thawed, and nobody else does that for half a minute.
    assert pause < 10_000
    assert reading < 10_000
    assert recorded <= @ahead
    eventually(fn -> done(beam) == @starts end, 20_000)
  end
end
