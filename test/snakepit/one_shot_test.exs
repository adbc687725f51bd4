defmodule Snakepit.OneShotTest do
  # Descriptors and processes of this BEAM are counted, so nothing else may have any.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Result
  alias Snakepit.Test.{Family, Hole, Leftovers, Program}

  setup do
    before = Leftovers.note()
    {:ok, leftovers: before}
  end

  defp refusal(call) do
    error = assert_raise ArgumentError, call
    error.message
  end

  # What a slow reader does with each piece.
  defp after_ms(pause_ms, data), do: receive(do: (:never -> data), after: (pause_ms -> data))

  describe "lines" do
    test "are collected whole and without their newlines, as a port's are" do
      text = "a\\r\\nlonger than the number\\n\\nb\\rc\\nno newline"
      lines = ["a", "longer than the number", "", "b\rc", "no newline"]
      assert Snakepit.cmd("printf", [text], into: [], lines: 4) == {lines, 0}
      assert Snakepit.cmd("printf", ["a\\nb"], lines: 4) == {"ab", 0}
      assert Snakepit.cmd("printf", [""], into: [], lines: 4) == {[], 0}

      # Whatever pieces they come in, and if they are cut short.
      {lines, 0} = Snakepit.cmd("seq", ["100000"], into: [], lines: 1)
      assert lines == for(number <- 1..100_000, do: "#{number}")

      assert Snakepit.cmd("yes", [], into: [], lines: 9, max_output: 5) ==
               {~w(y y y), :max_output}
    end

    test "the number is at least one" do
      assert refusal(fn -> Snakepit.cmd("true", [], lines: 0) end) =~ ":lines"
    end
  end

  test "an option of System.cmd/3 that has no effect is taken" do
    assert Snakepit.cmd("true", [], parallelism: true) == {"", 0}
    assert Snakepit.cmd("sh", ["-c", "echo $0"], arg0: "another") == {"another\n", 0}
    assert refusal(fn -> Snakepit.cmd("true", [], parallelism: 1) end) =~ ":parallelism"
  end

  describe "standard error" do
    @script "printf out; printf err >&2; exit 3"

    test "is the result's, its end or all of it, or leads elsewhere" do
      run = fn opts ->
        {:ok, %Result{status: 3} = result} = Snakepit.run("sh", ["-c", @script], opts)
        {result.stdout, result.stderr}
      end

      assert run.([]) == {"out", "err"}
      assert run.(stderr: :tail) == {"out", "err"}
      assert run.(stderr: :capture) == {"out", "err"}
      assert run.(stderr: :merge) == {"outerr", ""}
      assert run.(stderr: :merge, stderr_to_stdout: true) == {"outerr", ""}
      assert run.(stderr: :null) == {"out", ""}
      assert run.(stderr: :null, stderr_to_stdout: false) == {"out", ""}

      own = File.read_link!("/proc/self/fd/2")
      assert Snakepit.cmd("readlink", ["/proc/self/fd/2"], stderr: :inherit) == {own <> "\n", 0}
      assert Snakepit.cmd("readlink", ["/proc/self/fd/2"], stderr: :null) == {"/dev/null\n", 0}
    end

    test "that is captured is whole, however long it is and whoever writes first" do
      input = :binary.copy("0123456789abcdef", 100_000)
      {:ok, result} = Snakepit.run("tee", ["/dev/stderr"], input: input, stderr: :capture)
      assert result.stdout == input
      assert result.stderr == input

      one_after_the_other = "yes 1 | head -c 1000000; yes 2 | head -c 1000000 >&2"
      {:ok, result} = Snakepit.run("sh", ["-c", one_after_the_other], stderr: :capture)
      assert {byte_size(result.stdout), byte_size(result.stderr)} == {1_000_000, 1_000_000}

      # Nobody waits for the output.
      {:ok, result} = Snakepit.run("sh", ["-c", "exec >&-; echo err >&2"], stderr: :capture)
      assert {result.stdout, result.stderr} == {"", "err\n"}
    end

    test "that is captured counts as output" do
      script = "head -c 1000 /dev/zero; yes >&2"

      assert {:error, %Error{reason: :max_output}} =
               Snakepit.run("sh", ["-c", script], stderr: :capture, max_output: 5_000)

      assert {:ok, _result} =
               Snakepit.run("sh", ["-c", "head -c 9000 /dev/zero >&2"], max_output: 5_000)
    end

    test "has no place in what cmd/3 returns, and one place at a time" do
      assert refusal(fn -> Snakepit.cmd("true", [], stderr: :capture) end) =~ "run/3"
      assert refusal(fn -> Snakepit.cmd("true", [], stderr: :console) end) =~ ":stderr"

      for {mode, merged?} <- [tail: true, null: true, capture: true, merge: false] do
        options = [stderr: mode, stderr_to_stdout: merged?]
        message = refusal(fn -> Snakepit.run("true", [], options) end)
        assert message =~ "stderr_to_stdout: #{merged?}"
        assert message =~ "got: #{inspect(mode)}"
      end
    end
  end

  describe "statuses that are no success" do
    test "are errors, with the last words" do
      script = "echo out; echo err >&2; exit 3"
      assert {:ok, %Result{status: 3}} = Snakepit.run("sh", ["-c", script], success: 0..3)
      assert Snakepit.cmd("sh", ["-c", script], success: [0, 3]) == {"out\n", 3}

      assert {:error, %Error{} = error} = Snakepit.run("sh", ["-c", script], success: [0])
      assert %{operation: :run, reason: :exit_status, status: 3, output: "err\n"} = error

      error = assert_raise Error, fn -> Snakepit.cmd("sh", ["-c", script], success: [0]) end
      assert %{operation: :cmd, reason: :exit_status, status: 3, output: "err\n"} = error

      assert {:error, %Error{output: "out\nerr\n"}} =
               Snakepit.run("sh", ["-c", script], success: [0], stderr: :merge)

      assert {:error, %Error{output: "err\n"}} =
               Snakepit.run("sh", ["-c", script], success: [0], stderr: :capture)

      killed = ["-c", "kill -KILL $$"]
      assert {:error, %Error{} = error} = Snakepit.run("sh", killed, success: 0..255)
      assert %{reason: :exit_signal, signal: :sigkill} = error
    end

    test "are numbers from 0 to 255" do
      for success <- [[256], -1..3, 0, [0 | 1], ["0"]] do
        assert refusal(fn -> Snakepit.run("true", [], success: success) end) =~ ":success"
      end
    end
  end

  describe "a program that is idle" do
    test "is killed, and what it had written is there" do
      token = Family.token()
      script = "echo so far; exec sleep #{token}"

      assert Snakepit.cmd("sh", ["-c", script], idle_timeout: 500) == {"so far\n", :idle_timeout}

      assert {:error, %Error{reason: :idle_timeout, output: "so far\n"} = error} =
               Snakepit.run("sh", ["-c", script], idle_timeout: 500)

      assert Exception.message(error) =~ ":idle_timeout"
      closed = "exec >&-; exec sleep #{token}"
      assert Snakepit.cmd("sh", ["-c", closed], idle_timeout: 50) == {"", :idle_timeout}
      assert Family.members(token) == []
    end

    test "is not one that writes, to any stream that is read" do
      script = "for i in 1 2 3 4 5 6 7 8; do echo $i >&2; sleep 0.25; done"

      assert {:ok, %Result{status: 0}} =
               Snakepit.run("sh", ["-c", script], idle_timeout: 1_500, stderr: :capture)

      # And that one is not read.
      assert {:error, %Error{reason: :idle_timeout}} =
               Snakepit.run("sh", ["-c", script], idle_timeout: 600)
    end

    test "is not one whose reader takes its time" do
      slowly = &after_ms(300, &1)
      stream = Snakepit.stream!(["sh", "-c", "yes | head -c 200000"], idle_timeout: 200)
      assert Enum.each(stream, slowly) == :ok
    end
  end

  describe "a timeout" do
    test "holds while the program neither reads nor writes", %{leftovers: before} do
      token = Family.token()
      endless = Stream.repeatedly(fn -> :binary.copy("x", 10_000) end)

      for option <- [:timeout, :idle_timeout], input <- [endless, :binary.copy("x", 1_000_000)] do
        options = [{option, 100}, {:input, input}]
        assert Snakepit.cmd("sleep", [token], options) == {"", option}
      end

      assert Family.members(token) == []
      Leftovers.assert_none(before)
    end

    test "holds while the program always has output" do
      assert {_nothing, :timeout} = Snakepit.cmd("yes", [], timeout: 200, into: %Hole{})
      # When the time is up, there is more to read.
      stream = Snakepit.stream(["yes"], timeout: 500) |> Stream.map(&after_ms(600, &1))
      assert {:exit, {:error, %Error{reason: :timeout}}} = stream |> Enum.take(2) |> List.last()
    end

    test "is not that of what a program leaves behind" do
      # It does not end when it is asked, and has the output open.
      script = "(trap '' TERM; sleep 600; sleep 600) & echo done"
      options = [timeout: 1_500, stop_timeout: 60_000]
      assert Snakepit.cmd("sh", ["-c", script], options) == {"done\n", 0}
    end
  end

  describe "somebody who holds the output open" do
    test "of the tree, is ended, and the call returns" do
      token = Family.token()

      script =
        "setsid sleep #{token} & (trap '' TERM; sleep #{token}; sleep #{token}) & echo done"

      assert Snakepit.cmd("sh", ["-c", script], stop_timeout: 100) == {"done\n", 0}
      assert Family.members(token) == []
    end

    for {name, then} <- [waits: "exec sleep 600", floods: "exec yes >&9 2>/dev/null"] do
      test "outside of the tree, and #{name}, keeps nobody waiting" do
        [pid, go] = for name <- ["pid", "go"], do: temporary_path(name)
        script = "echo $$ > #{pid}; until [ -e #{go} ]; do sleep 0.02; done; exit 0"
        # So slowly that a flood always has something.
        stream = Snakepit.stream(["sh", "-c", script]) |> Stream.map(&after_ms(50, &1))
        task = Task.async(fn -> stream |> Enum.take(200) |> List.last() end)
        os_pid = eventually(fn -> number_in(pid) end)
        holds = "exec 9>/proc/#{os_pid}/fd/1; echo ready; #{unquote(then)}"
        holder = Program.start("sh", ["-c", holds], ready: true)
        File.write!(go, "")
        assert Task.await(task, 40_000) == {:exit, {:status, 0}}
        assert unquote(name) == :floods or ProcScan.running?(holder)
        eventually(fn -> not ProcScan.running?(os_pid) end)
      end
    end
  end

  describe "the mailbox of the caller" do
    test "keeps what it had, in order, and nothing is added" do
      for number <- 1..5_000, do: send(self(), {:select, number, make_ref(), :ready_input})
      before = Process.info(self(), :messages)
      input = Stream.map(1..100, &"#{&1}\n")
      assert {_output, 0} = Snakepit.cmd("sort", [], input: input)

      {:ok, _result} =
        Snakepit.run("sh", ["-c", "yes | head -c 999999 | tee /dev/stderr"], stderr: :capture)

      {_output, :timeout} = Snakepit.cmd("sleep", ["600"], input: input, timeout: 10)
      assert [_one] = Snakepit.stream!(["yes"], input: input, stderr: :capture) |> Enum.take(1)
      assert Process.info(self(), :messages) == before
      assert Process.info(self(), :monitors) == {:monitors, []}
    end
  end
end
