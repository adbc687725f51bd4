defmodule Snakepit.InitTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, GuardianCommand, ProcScan}

  @moduletag :long

  defp init(script, options \\ []) do
    GuardianCommand.run(["init"] ++ options ++ ["--", "sh", "-c", script])
  end

  # The first process of a pid namespace, with a process table of its own, as in a container.
  @as_first ["--pid", "--fork", "--mount-proc", "--kill-child"]

  defp contained(script, options \\ []) do
    guardian = [GuardianCommand.executable(), "init"] ++ options

    System.cmd("unshare", @as_first ++ guardian ++ ["--", "sh", "-c", script],
      stderr_to_stdout: true
    )
  end

  test "it exits with the status of its command, or 128 and the number of the signal" do
    for status <- [0, 1, 7, 255], do: assert({"", ^status} = init("exit #{status}"))
    assert {"", 137} = init("kill -9 $$")
    assert {"", 143} = init("kill -TERM $$")
    assert {text, 127} = GuardianCommand.run(["init", "--", "/no/such/program"])
    assert text =~ "/no/such/program"
    assert {_text, 126} = GuardianCommand.run(["init", "--", "/etc/passwd"])
    assert {_text, 64} = GuardianCommand.run(["init"])
  end

  test "whatever the command has started ends with it: children, sessions, daemons, and those that will not" do
    token = Family.token()

    script = """
    setsid sh -c 'trap "" TERM; exec sleep #{token}' &
    (#{Family.script(token)}) &
    words() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; }
    until [ "$(words | grep -cx '#{token}')" -ge 5 ]; do sleep 0.05; done
    """

    assert {_text, 0} = init(script, ["--grace", "300"])
    assert Family.members(token) == []
  end

  test "a signal reaches the command, which decides" do
    token = Family.token()

    script = """
    trap 'kill $!; exit 9' TERM
    sleep #{token} &
    echo ready
    wait
    """

    port =
      Port.open({:spawn_executable, GuardianCommand.executable()}, [
        :binary,
        :exit_status,
        args: ["init", "--", "sh", "-c", script]
      ])

    assert_receive {^port, {:data, "ready\n"}}
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    {_text, 0} = System.cmd("kill", ["-TERM", "#{os_pid}"])
    assert_receive {^port, {:exit_status, 9}}
    assert Family.members(token) == []
  end

  @tag :root
  test "as the first process it reaps every zombie, and ends everything in the container" do
    file = Path.join(Beam.temporary_directory(), "ended")
    File.touch!(file)

    # Each is forked twice and ends at once: nobody but the first process can reap it.
    script = """
    for n in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'echo >>#{file}' &); done
    (setsid env -i sleep 86400 &)
    until [ "$(wc -l <#{file})" = 10 ]; do :; done
    until ! cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z '; do :; done
    cat /proc/1/comm
    exit 5
    """

    assert {"snakepit_guardi\n", 5} = contained(script)
  end

  @tag :root
  test "as the first process it passes on signals that the kernel would keep from it" do
    script = "trap 'exit 11' TERM; kill -TERM 1; while :; do sleep 0.05; done"
    assert {"", 11} = contained(script)
    assert {"", 12} = contained("trap 'exit 12' USR1; kill -USR1 1; while :; do sleep 0.05; done")
  end

  test "in front of a BEAM it leaves the workers to their guardian" do
    data_dir = Beam.temporary_directory()
    wrapper = [GuardianCommand.executable(), "init", "--grace", "20000", "--"]
    outer = Beam.launch([data_dir: data_dir], wrapper: wrapper)
    beam = Beam.await_start(outer)
    assert ProcScan.stat(beam.os_pid).parent == outer.os_pid
    token = Family.start(beam)
    run_id = Beam.run(beam, "Snakepit.run_id()")
    Beam.kill(beam)
    Beam.await_end(outer)
    assert Family.members(token) == []
    # Its guardian had the time to finish.
    assert %{survivors: [], processes: [_ | _]} =
             Snakepit.Native.obituary_read(Path.join(data_dir, run_id))

    eventually(fn -> not ProcScan.running?(%{os_pid: outer.os_pid, start: outer.start}) end)
  end
end
