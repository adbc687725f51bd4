defmodule Snakepit.WaysToStopTest do
  # Kill modes, abort signals and stop commands: what the process is told, in which order, and that nothing is left.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  alias Snakepit.Guardian
  alias Snakepit.Test.{Beam, Family}

  @moduletag timeout: 120_000

  # Notes each signal, ends at none of them but the last.
  defp notes_all(path, last) do
    noted =
      for signal <- ~w(TERM USR1 ABRT) -- [last],
          do: "trap 'echo #{signal} >> #{path}' #{signal}; "

    ended = "trap 'echo #{last} >> #{path}; exit 0' #{last}; "

    # Of a child that a signal ends it would tell on standard error, where nobody reads when the BEAM is gone.
    bash(
      "exec 2> /dev/null; " <>
        Enum.join(noted) <> ended <> "echo up; while :; do sleep 0.02; done"
    )
  end

  defp notes(path) do
    case File.read(path) do
      {:ok, text} -> String.split(text)
      {:error, :enoent} -> []
    end
  end

  defp start!(path, opts) do
    {last, opts} = Keyword.pop(opts, :ends_at, "ABRT")

    {:ok, worker} =
      Worker.start_link([cmd: notes_all(path, last), ready: {:output, "up"}] ++ opts)

    worker
  end

  describe "an abort signal" do
    test "comes when the time is up, and SIGKILL when its own time is" do
      path = temporary_path("notes")
      worker = start!(path, abort_signal: :sigabrt, abort_timeout: 60_000, stop_timeout: 200)
      assert Worker.stop(worker) == :ok
      assert notes(path) == ["TERM", "ABRT"]

      deaf = temporary_path("deaf")
      options = [ends_at: "USR1", abort_signal: :sigabrt, abort_timeout: 200, stop_timeout: 200]
      worker = start!(deaf, options)
      os_pid = Worker.os_pid!(worker)
      assert Worker.stop(worker) == :ok
      refute ProcScan.running?(os_pid)
      assert notes(deaf) == ["TERM", "ABRT"]
    end

    test "does not come to one that ends when asked, nor to what its leader has left" do
      path = temporary_path("notes")
      left = temporary_path("left")

      stays =
        "trap 'echo TERM >> #{left}' TERM; trap 'echo ABRT >> #{left}' ABRT; echo >> #{left}.up; while :; do sleep 0.02; done"

      leader =
        "trap 'echo TERM >> #{path}; exit 0' TERM; until [ -e #{left}.up ]; do sleep 0.01; done; echo up; "

      script = "setsid bash -c \"#{stays}\" & #{leader} while :; do sleep 0.02; done"
      on_exit(fn -> File.rm(left <> ".up") end)

      {:ok, worker} =
        Worker.start_link(
          cmd: bash(script),
          ready: {:output, "up"},
          abort_signal: :sigabrt,
          stop_timeout: 500
        )

      assert Worker.stop(worker) == :ok
      assert notes(path) == ["TERM"]
      assert notes(left) == ["TERM"]
    end

    test "comes at once to one that does not say that it is alive" do
      path = temporary_path("notes")
      options = [watchdog: 200, abort_signal: :sigabrt, abort_timeout: 60_000]
      worker = start!(path, options)
      monitor = Process.monitor(worker)
      assert_receive {:DOWN, ^monitor, :process, _pid, :heartbeat_timeout}
      assert notes(path) == ["ABRT"]
    end

    test "is what the process dies of" do
      command =
        Snakepit.Command.new!(
          cmd: ["bash", "-c", "trap '' TERM; echo up; sleep 600 & wait; wait"],
          stop_timeout: 200,
          abort_signal: :sigabrt
        )

      {:ok, child, _monitor} = Guardian.start(command, "aborted")
      eventually(fn -> Guardian.output_tail(child) == {:ok, "up\n"} end)
      assert Guardian.stop(child, timeout: 200) == :ok
      id = child.id
      assert_receive {Guardian, ^id, {:exited, %{signal: :sigabrt}, _tail}}
    end

    test "holds when the BEAM dies and when all is ended, unless that says how long it may take" do
      for {ending, expected} <- [
            {:kill, ["TERM", "ABRT"]},
            {"{:ok, _} = Snakepit.cleanup()", ["TERM", "ABRT"]},
            {"{:ok, _} = Snakepit.cleanup(timeout: 300)", ["TERM"]}
          ] do
        path = temporary_path("notes")
        beam = Beam.start(watchdog: [grace_period_ms: 100], cleanup_on_stop_timeout_ms: 100)

        options = [
          cmd: notes_all(path, "ABRT"),
          ready: {:output, "up"},
          abort_signal: :sigabrt,
          abort_timeout: 60_000,
          stop_timeout: 200
        ]

        os_pid = Beam.run(beam, start_code(options))
        if ending == :kill, do: Beam.kill(beam), else: Beam.run(beam, ending)
        eventually(fn -> not ProcScan.running?(os_pid) end)
        assert {ending, notes(path)} == {ending, expected}
        Beam.kill(beam)
      end
    end
  end

  defp start_code(options) do
    "(Process.flag(:trap_exit, true); {:ok, w} = Snakepit.Worker.start_link(#{inspect(options)}); " <>
      "Process.register(w, :w); Snakepit.Worker.os_pid!(w))"
  end

  for mode <- [:tree, :group, :leader, :mixed] do
    test "with kill_mode: #{inspect(mode)} the whole family is gone after each way to end" do
      for ending <- [:stop, :kill, :beam] do
        token = Family.token()

        options = [
          cmd: ["sh", "-c", Family.script(token)],
          kill_mode: unquote(mode),
          stop_timeout: 5_000
        ]

        if ending == :beam do
          beam = Beam.start()
          Beam.run(beam, start_code(options))
          Family.await(token)
          Beam.kill(beam)
        else
          {:ok, worker} = Worker.start_link(options)
          Family.await(token)
          if ending == :stop, do: Worker.stop(worker), else: Process.exit(worker, :kill)
        end

        eventually(fn -> Family.members(token) == [] end)
      end
    end
  end

  describe "a stop command" do
    test "asks instead of the signal, in the process's own surroundings" do
      path = temporary_path("notes")
      command = ["sh", "-c", "echo $ASKED >> #{path}; kill -USR1 $MAINPID"]

      worker =
        start!(path,
          ends_at: "USR1",
          stop_command: command,
          stop_timeout: 60_000,
          env: [{"ASKED", "asked"}]
        )

      assert Worker.stop(worker) == :ok
      assert notes(path) == ["asked", "USR1"]
      # Whoever names a signal wants that one.
      worker = start!(path, ends_at: "TERM", stop_command: command)
      assert Worker.stop(worker, signal: :sigterm) == :ok
      assert notes(path) == ["asked", "USR1", "TERM"]
    end

    test "that fails is followed by the signal, with a line in the log" do
      for {command, why} <- [
            {["sh", "-c", "echo no >&2; exit 3"], "ended with status 3"},
            {["sh", "-c", "kill -KILL $$"], "was ended by sigkill"},
            {["no-such-command"], "failed: cannot execute"}
          ] do
        path = temporary_path("notes")
        worker = start!(path, ends_at: "TERM", stop_command: command, stop_timeout: 60_000)
        log = capture_log(fn -> assert Worker.stop(worker) == :ok end)
        assert notes(path) == ["TERM"]
        assert log =~ why
      end
    end

    test "that hangs, or is not heard, is followed by SIGKILL when the time is up" do
      token = Family.token()
      path = temporary_path("notes")

      for command <- [["sleep", token], ["true"]] do
        worker = start!(path, stop_command: command, stop_timeout: 300)
        os_pid = Worker.os_pid!(worker)
        assert Worker.stop(worker) == :ok
        refute ProcScan.running?(os_pid)
        eventually(fn -> Family.members(token) == [] end)
      end

      assert notes(path) == []
      worker = start!(path, stop_command: ["true"], stop_timeout: 300, abort_signal: :sigabrt)
      assert Worker.stop(worker) == :ok
      assert notes(path) == ["ABRT"]
    end

    test "runs once, as soon as the application stops, and the supervisor finds the process gone" do
      path = temporary_path("notes")
      command = ["sh", "-c", "echo asked >> #{path}; kill -USR1 $MAINPID"]
      worker = start!(path, ends_at: "USR1", stop_command: command, stop_timeout: 60_000)
      os_pid = Worker.os_pid!(worker)
      send(worker, {Worker, :application_stops})
      send(worker, {Worker, :application_stops})
      eventually(fn -> not ProcScan.running?(os_pid) end)
      assert Process.alive?(worker)
      assert Worker.stop(worker) == :ok
      assert notes(path) == ["asked", "USR1"]

      # One that fails then, and one that is not heard.
      for {command, options, noted} <- [
            {["false"], [ends_at: "TERM", stop_timeout: 60_000], ["TERM"]},
            {["true"], [stop_timeout: 300], []}
          ] do
        path = temporary_path("notes")
        worker = start!(path, [stop_command: command] ++ options)
        os_pid = Worker.os_pid!(worker)
        send(worker, {Worker, :application_stops})
        eventually(fn -> not ProcScan.running?(os_pid) end)
        assert Worker.stop(worker) == :ok
        assert notes(path) == noted
      end
    end

    test "does not run when the BEAM is gone: the signal does its work" do
      path = temporary_path("notes")

      options = [
        cmd: notes_all(path, "TERM"),
        ready: {:output, "up"},
        stop_command: ["sh", "-c", "echo asked >> #{path}"]
      ]

      beam = Beam.start()
      os_pid = Beam.run(beam, start_code(options))
      Beam.kill(beam)
      eventually(fn -> not ProcScan.running?(os_pid) end)
      assert notes(path) == ["TERM"]

      File.rm!(path)
      beam = Beam.start()

      Beam.run(
        beam,
        start_code(
          put_in(options[:stop_command], ["sh", "-c", "echo asked >> #{path}; kill $MAINPID"])
        )
      )

      Beam.tell(beam, "System.stop()")
      Beam.await_end(beam)
      # Nobody supervises it: the barrier of the application ends it, by its signal.
      assert notes(path) == ["TERM"]
    end
  end
end
