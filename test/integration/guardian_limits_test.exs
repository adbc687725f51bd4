defmodule Snakepit.GuardianLimitsTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  defp guardian(beam), do: Beam.run(beam, "Snakepit.Guardian.os_pid()")

  defp status(os_pid, field) do
    [_all, mask] = Regex.run(~r/#{field}:\s*([0-9a-f]+)/, File.read!("/proc/#{os_pid}/status"))
    String.to_integer(mask, 16)
  end

  defp ticks(os_pid) do
    [_name, rest] = String.split(File.read!("/proc/#{os_pid}/stat"), ") ", parts: 2)
    fields = String.split(rest)
    String.to_integer(Enum.at(fields, 11)) + String.to_integer(Enum.at(fields, 12))
  end

  defp limit(os_pid, limit), do: {_, 0} = System.cmd("prlimit", ["--pid", "#{os_pid}", limit])

  # SIGXCPU is 24 and SIGXFSZ 25.
  @limits_mask Bitwise.bsl(3, 23)

  test "limits of file size and of processor time do not end the guardian, and are its children's" do
    beam = Beam.start()
    guardian = guardian(beam)
    assert Bitwise.band(status(guardian, "SigIgn"), @limits_mask) == @limits_mask

    child =
      Beam.run(beam, """
      {:ok, child} = Snakepit.Test.Workers.start("w", ["sleep", "600"])
      child.os_pid
      """)

    assert Bitwise.band(status(child, "SigIgn"), @limits_mask) == 0

    for signal <- ["XCPU", "XFSZ"], do: {_, 0} = System.cmd("kill", ["-#{signal}", "#{guardian}"])

    # What it writes for a large command is a file; what is asked for there fails, and nothing else.
    limit(guardian, "--fsize=1000:")
    large = ~s|String.duplicate("x", 20_000)|

    assert {:error, :efbig} =
             Beam.run(beam, """
             case Snakepit.run("echo", [#{large}]) do
               {:ok, result} -> result.status
               {:error, error} -> {:error, error.reason}
             end
             """)

    limit(guardian, "--fsize=unlimited:")
    assert Beam.run(beam, "Snakepit.cmd(\"echo\", [\"here\"])") == {"here\n", 0}
    assert guardian(beam) == guardian
    assert ProcScan.running?(child)
  end

  test "a connection for which there is no descriptor does not keep the guardian busy" do
    beam = Beam.start()
    guardian = guardian(beam)
    {_output, 0} = System.cmd("sh", ["-c", "prlimit --pid #{guardian} --nofile=5:"])
    # It can be made, and nobody takes it.
    {:ok, true} =
      Beam.run(beam, """
      {:ok, socket, token} = Snakepit.Guardian.connect()
      Process.put(:socket, {socket, token})
      {:ok, is_port(socket)}
      """)

    before = ticks(guardian)
    # As long as there is none, it sleeps.
    begun = System.monotonic_time(:millisecond)
    eventually(fn -> System.monotonic_time(:millisecond) - begun > 1_000 end)
    assert ticks(guardian) - before < 30

    # With one again the connection is taken, and used.
    limit(guardian, "--nofile=1024:")

    assert Beam.run(beam, """
           {socket, token} = Process.get(:socket)
           command = Snakepit.Command.new!(cmd: ["echo", "here"], stdio: {:pipe, token})
           {:ok, child} = Snakepit.Guardian.spawn(command)
           :ok = Snakepit.Guardian.release(child)
           :gen_tcp.recv(socket, 0, 5_000)
           """) == {:ok, "here\n"}
  end
end
