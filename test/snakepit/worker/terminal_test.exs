defmodule Snakepit.Worker.TerminalTest do
  # Descriptors of this BEAM are counted, so nothing else may open any.
  use Snakepit.Test.WorkerCase, async: false

  import Snakepit.Test.Dialogue

  alias Snakepit.Terminal

  @isatty "import os; print([os.isatty(fd) for fd in (0, 1, 2)])"

  @says_its_size """
  import os, signal

  # Blocked from the start: a handler would interrupt what is being written.
  signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
  while True:
      size = os.get_terminal_size()
      print(size.lines, size.columns, flush=True)
      signal.sigwait({signal.SIGWINCH})
  """

  setup do
    before = terminals()
    on_exit(fn -> eventually(fn -> terminals() == before end) end)
  end

  # The BEAM's sides of terminals.
  defp terminals, do: length(Snakepit.Test.OpenFiles.matching(~r"^/dev/p.*ptmx"))

  defp interpreter do
    dialogue =
      start(["python3", "-i", "-q"], [],
        env: [{"PYTHONSTARTUP", ""}, {"PYTHON_BASIC_REPL", "1"}, {"PYTHON_COLORS", "0"}]
      )

    expect(dialogue, ">>> ")
    dialogue
  end

  defp shell(terminal \\ [], opts \\ []) do
    env = [{"PS1", "ready$ "}, {"PS2", "> "}]
    dialogue = start(["bash", "--norc", "--noediting", "-i"], terminal, [env: env] ++ opts)
    expect(dialogue, "ready$ ")
    dialogue
  end

  # What the shell answers, without the echo of the question.
  defp ask(dialogue, command) do
    type(dialogue, command <> "\n")
    [_echo, answer] = dialogue |> expect("ready$ ") |> String.split("\r\n", parts: 2)
    answer |> String.replace_suffix("ready$ ", "") |> String.trim()
  end

  describe "a program at a terminal" do
    test "has one for all its streams; with pipes it has none" do
      assert {"[True, True, True]\r\n", :normal} = listen(start(["python3", "-c", @isatty]))

      {:ok, _worker} =
        Worker.start_link(
          id: "piped",
          cmd: ["python3", "-c", @isatty],
          stdio: :pipe,
          packet: :line,
          output: {:send, self()}
        )

      assert_receive {Worker, "piped", {:output, "[False, False, False]\n"}}
    end

    test "has a controlling terminal, which it can open by its name, and is in front" do
      front = "import os; print(os.tcgetpgrp(0) == os.getpgrp() == os.getsid(0))"
      script = "tty; echo by name > /dev/tty; exec python3 -c '#{front}'"
      assert {said, :normal} = listen(start(sh(script)))
      assert ["/dev/pts/" <> _, "by name", "True"] = String.split(said, "\r\n", trim: true)
    end

    test "has the size that was asked for, and is told of another one" do
      dialogue = start(["python3", "-c", @says_its_size], rows: 30, cols: 100)
      expect(dialogue, "30 100\r\n")
      assert Worker.resize(dialogue.worker, 10, 20) == :ok
      expect(dialogue, "10 20\r\n")
      assert Worker.resize(dialogue.worker, cols: 33) == :ok
      expect(dialogue, "10 33\r\n")
      assert {:ok, %{rows: 10, cols: 33}} = Terminal.modes(dialogue.worker)
      assert Worker.stop(dialogue.worker) == :ok
    end

    test "has 24 rows and 80 columns by default" do
      {:ok, _worker} =
        Worker.start_link(id: "plain", cmd: sh("stty size"), stdio: :pty, output: {:send, self()})

      assert_receive {Worker, "plain", {:output, "24 80\r\n"}}
    end

    test "knows what kind of terminal it is, and no size but the terminal's own" do
      script = sh(~S(echo "$TERM ${LINES-none} ${COLUMNS-none}"))
      System.put_env("COLUMNS", "7")
      on_exit(fn -> System.delete_env("COLUMNS") end)

      assert {"xterm-256color none none\r\n", :normal} = listen(start(script))
      assert {"vt100 none none\r\n", :normal} = listen(start(script, term: "vt100"))

      env = [{"TERM", "dumb"}, {"LINES", "5"}]
      assert {"dumb 5 none\r\n", :normal} = listen(start(script, [term: "vt100"], env: env))
      assert {"dumb 5 none\r\n", :normal} = listen(start(script, [], env: Map.new(env)))
    end

    test "shows what is typed, or not" do
      loud = start(sh("read line; echo got $line"))
      type(loud, "word\n")
      assert {"word\r\ngot word\r\n", :normal} = listen(loud)

      silent = start(sh("read line; echo got $line"), echo: false)
      type(silent, "word\n")
      assert {"got word\r\n", :normal} = listen(silent)
    end

    test "gets every byte, and writes every byte, if it is raw" do
      all = :binary.copy(for(byte <- 0..255, into: <<>>, do: <<byte>>), 400)
      dialogue = start(["head", "-c", "#{byte_size(all)}"], raw: true)
      assert type(dialogue, all) == :ok
      assert {^all, :normal} = listen(dialogue)
    end

    test "gets more than any buffer holds, if it is raw" do
      dialogue = start(sh("head -c 3000000 | wc -c"), raw: true)
      assert type(dialogue, :binary.copy("x", 3_000_000)) == :ok
      assert {"3000000\n", :normal} = listen(dialogue)
    end
  end

  describe "keys" do
    test "the end of input, at the start of a line and in its middle" do
      dialogue = start(["cat"], echo: false)
      assert Worker.close_input(dialogue.worker) == :ok
      assert {"", :normal} = listen(dialogue)

      dialogue = start(["cat"], echo: false)
      type(dialogue, "line\nno line")
      assert Worker.close_input(dialogue.worker) == :ok
      assert {"line\r\nno line", :normal} = listen(dialogue)
    end

    test "after the end of input there can be more" do
      dialogue = shell()
      type(dialogue, "cat\n")
      type(dialogue, "half")
      Worker.close_input(dialogue.worker)
      expect(dialogue, "halfready$ ")
      assert ask(dialogue, "echo on") == "on"
      Worker.close_input(dialogue.worker)
      assert {_exit, :normal} = listen(dialogue)
    end

    test "the interrupt reaches what is in front, and not the shell behind it" do
      dialogue = shell()
      type(dialogue, "bash -c 'echo begun; exec sleep 600'\n")
      expect(dialogue, "begun\r\n")
      assert Worker.interrupt(dialogue.worker) == :ok
      expect(dialogue, "ready$ ")
      assert ask(dialogue, "echo $?") == "130"
      Worker.stop(dialogue.worker)
    end

    test "are refused where there is no terminal" do
      {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"], stdio: :pipe)
      assert {:error, %Error{reason: :enotty} = error} = Worker.resize(worker, 10, 10)
      assert Exception.message(error) =~ "its :stdio is not :pty"
      assert {:error, %Error{reason: :enotty}} = Worker.interrupt(worker)
      assert {:error, %Error{reason: :enotty}} = Terminal.modes(worker)
      Worker.stop(worker)

      {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"])
      assert {:error, %Error{reason: :enotty}} = Worker.resize(worker, 10, 10)
      Worker.stop(worker)
    end
  end

  describe "well-known programs" do
    test "an interpreter" do
      dialogue = interpreter()
      type(dialogue, "6 * 7\n")
      expect(dialogue, "42\r\n>>> ")
      Worker.close_input(dialogue.worker)
      assert {_said, :normal} = listen(dialogue)

      dialogue = interpreter()
      type(dialogue, "print('begun'); [None for _ in iter(int, 1)]\n")
      expect(dialogue, "begun\r\n")
      Worker.interrupt(dialogue.worker)
      expect(dialogue, ~r/KeyboardInterrupt\r\n(.*)>>> /s)
      Worker.stop(dialogue.worker)
    end

    test "a password prompt, whose answer nobody sees" do
      script = "import getpass; print(len(getpass.getpass('Password: ')))"
      dialogue = start(["python3", "-c", script])
      expect(dialogue, "Password: ")
      assert {:ok, %{echo: false, canonical: true}} = Terminal.modes(dialogue.worker)
      type(dialogue, "secret\n")
      assert {"\r\n6\r\n", :normal} = listen(dialogue)
    end

    @tag skip: if(System.find_executable("vi"), do: false, else: "there is no vi")
    test "an editor" do
      path = temporary_path("edited")
      dialogue = start(["vi", "-u", "NONE", path])
      expect(dialogue, "edited")
      eventually(fn -> match?({:ok, %{canonical: false}}, Terminal.modes(dialogue.worker)) end)
      type(dialogue, "ione\rtwo\e:wq\r")
      assert {_screen, :normal} = listen(dialogue)
      assert File.read!(path) == "one\ntwo\n"
    end

    @tag skip: if(System.find_executable("top"), do: false, else: "there is no top")
    test "a monitor that draws on the whole screen" do
      dialogue = start(["top", "-d", "60"], rows: 10, cols: 60)
      expect(dialogue, "PID")
      eventually(fn -> match?({:ok, %{canonical: false}}, Terminal.modes(dialogue.worker)) end)
      type(dialogue, "q")
      assert {_screen, :normal} = listen(dialogue)
    end
  end

  describe "the end" do
    test "what was written last is delivered, also if it was killed right after" do
      for _ <- 1..10 do
        assert {said, {:exit_signal, :sigkill}} = listen(start(sh("seq 5000; kill -KILL $$")))
        assert String.ends_with?(said, "\n5000\r\n")
      end
    end

    test "a shell, which ignores SIGTERM, ends at once" do
      dialogue = shell([], stop_timeout: 60_000)
      {:ok, os_pid} = Worker.os_pid(dialogue.worker)
      # So that it does ignore it.
      assert ask(dialogue, "kill -TERM $$; echo still here") == "still here"
      begun = System.monotonic_time(:millisecond)
      assert Worker.stop(dialogue.worker) == :ok
      assert System.monotonic_time(:millisecond) - begun < 30_000
      refute ProcScan.running?(os_pid)
    end

    test "is by the signal that was chosen" do
      script =
        "trap 'echo term; exit' TERM; trap '' HUP; echo begun; while :; do sleep 0.01; done"

      dialogue = start(bash(script), [], stop_signal: :sigterm)
      expect(dialogue, "begun\r\n")
      assert Worker.stop(dialogue.worker) == :ok
      assert {said, :normal} = listen(dialogue)
      assert said =~ "term\r\n"
    end

    test "of the worker ends what is at the terminal, in front and behind" do
      dialogue = shell()
      ask(dialogue, "sleep 600 &")
      type(dialogue, "sleep 601\n")
      {:ok, os_pid} = Worker.os_pid(dialogue.worker)
      eventually(fn -> length(ProcScan.descendants(os_pid)) == 2 end)
      family = for pid <- [os_pid | ProcScan.descendants(os_pid)], do: ProcScan.stat(pid)
      Process.exit(dialogue.worker, :kill)
      for process <- family, do: eventually(fn -> not ProcScan.running?(process) end)
    end

    test "of the terminal's program is an error for whoever types" do
      dialogue = start(sh("exit 3"))
      assert {"", {:exit_status, 3}} = listen(dialogue)
      assert {:error, %Error{reason: :worker_down}} = type(dialogue, "x")
    end

    test "its last output is in the log and in the tail" do
      dialogue = start(sh("printf 'a prompt: '; read line"))
      expect(dialogue, "a prompt: ")
      assert Worker.output_tail(dialogue.worker) == {:ok, "a prompt: "}

      log =
        ExUnit.CaptureLog.capture_log(fn ->
          {:ok, os_pid} = Worker.os_pid(dialogue.worker)
          kill(os_pid)
          assert {"", {:exit_signal, :sigkill}} = listen(dialogue)
        end)

      assert log =~ "a prompt:"
    end
  end

  @tag :root
  test "with a user of its own the terminal is that user's" do
    script = "stat -c %U $(tty); echo by name > /dev/tty"
    assert {"nobody\r\nby name\r\n", :normal} = listen(start(sh(script), [], user: "nobody"))
  end

  test "it counts as ready when it says so, in a line or in none" do
    {:ok, worker} =
      Worker.start_link(
        cmd: sh("printf 'pass'; printf 'word: '; read line"),
        stdio: :pty,
        ready: {:output, "password: "}
      )

    assert Worker.output_tail(worker) == {:ok, "password: "}
    Worker.stop(worker)
  end

  test "options that are none are refused before anything starts" do
    for {terminal, message} <- [
          {[rows: 0], ~r/:stdio: expected :rows to be an integer from 1 to 65535, got: 0/},
          {[cols: 70_000], ~r/:cols/},
          {[height: 4], ~r/:stdio: unknown option :height/},
          {[echo: 1], ~r/:echo to be true or false/},
          {[term: ""], ~r/:term/}
        ] do
      assert_raise ArgumentError, message, fn ->
        Worker.start_link(cmd: ["true"], stdio: {:pty, terminal})
      end
    end

    assert_raise ArgumentError, ~r/:packet/, fn ->
      Worker.start_link(cmd: ["true"], stdio: :pty, packet: :line)
    end

    assert_raise ArgumentError, ~r/:rows/, fn -> Worker.resize(self(), 0, 10) end
  end
end
