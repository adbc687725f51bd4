defmodule Snakepit.CmdTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Result
  alias Snakepit.Test.{Beam, Family}

  doctest Snakepit, only: [cmd: 3, run: 3, stream!: 2, stream: 2]

  describe "cmd/3" do
    test "gives output and status" do
      assert Snakepit.cmd("echo", ["a", "b c"]) == {"a b c\n", 0}
      assert Snakepit.cmd("sh", ["-c", "echo out; exit 3"]) == {"out\n", 3}
      assert Snakepit.cmd("sh", ["-c", "kill -KILL $$"]) == {"", 137}
      assert Snakepit.cmd("sh", ["-c", "kill -TERM $$"]) == {"", 143}
      assert Snakepit.cmd("pwd", [], cd: "/") == {"/\n", 0}
      assert Snakepit.cmd("sh", ["-c", "echo $X"], env: [{"X", "y"}]) == {"y\n", 0}
      assert Snakepit.cmd("cat", []) == {"", 0}
    end

    test "errors are part of the output only if asked for" do
      script = "echo out; echo err >&2"
      assert Snakepit.cmd("sh", ["-c", script]) == {"out\n", 0}
      assert Snakepit.cmd("sh", ["-c", script], stderr_to_stdout: true) == {"out\nerr\n", 0}
      assert Snakepit.cmd("sh", ["-c", "cat >&2"], stderr_to_stdout: true, input: "x") == {"x", 0}
    end

    test "collects into anything" do
      assert Snakepit.cmd("printf", ["ab"], into: []) == {["ab"], 0}
    end

    test "large input and output do not wait for each other" do
      data = :binary.copy("0123456789abcdef", 500_000)
      assert {^data, 0} = Snakepit.cmd("cat", [], input: data)
      # One that ends before it has read everything.
      for _ <- 1..20, do: assert({"0123", 0} = Snakepit.cmd("head", ["-c", "4"], input: data))
    end

    test "what it leaves running is ended, and does not keep it waiting" do
      token = Family.token()
      script = "sleep #{token} & (env -i setsid sleep #{token} &); echo done"
      assert Snakepit.cmd("sh", ["-c", script]) == {"done\n", 0}
      assert Family.members(token) == []
    end

    @tag :long
    test "a timeout kills the tree and gives what there was" do
      token = Family.token()

      # As long as it takes: the output is there by then, however busy the machine is.
      script = "echo so far; exec sleep #{token}"
      assert Snakepit.cmd("sh", ["-c", script], timeout: 2_000) == {"so far\n", :timeout}
      assert Family.members(token) == []
      # Also of one that has closed its output.
      closes = "exec >&-; exec sleep #{token}"
      assert Snakepit.cmd("sh", ["-c", closes], timeout: 200) == {"", :timeout}

      assert Family.members(token) == []
    end

    test "a command that is too long for any kernel is refused, and harms nobody" do
      {:ok, bystander} = Worker.start_link(cmd: ["sleep", "600"])
      os_pid = Worker.os_pid!(bystander)

      for argument <- [String.duplicate("x", 17_000_000), String.duplicate("x", 7_000_000)] do
        assert {:error, %Error{reason: :e2big}} = Snakepit.run("true", [argument])
        assert {:error, %Error{reason: :e2big}} = Worker.start_link(cmd: ["true", argument])
        assert {:error, %Error{reason: :e2big}} = Snakepit.run("true", [], cd: "/" <> argument)
        env = [{"X", argument}]
        assert {:error, %Error{reason: :e2big}} = Snakepit.run("true", [], env: env)
      end

      # One that the kernel itself refuses.
      assert {:error, %Error{reason: :e2big}} =
               Snakepit.run("true", [String.duplicate("x", 200_000)])

      assert Worker.os_pid!(bystander) == os_pid
      assert ProcScan.running?(os_pid)
      assert Process.info(self(), :monitors) == {:monitors, []}
      assert Worker.stop(bystander) == :ok
    end

    test "a long command that the kernel takes is run, and the ledger keeps its beginning" do
      arguments = List.duplicate(String.duplicate("x", 100_000), 12)
      assert {output, 0} = Snakepit.cmd("echo", arguments)
      assert byte_size(output) == 12 * 100_001

      {:ok, worker} = Worker.start_link(id: "long", cmd: ["tail", "-f", "/dev/null" | arguments])

      assert {:ok, %{command: [_tail, "-f", "/dev/null", first | _]}} =
               ProcessRegistry.get_worker_info("long")

      assert first == String.duplicate("x", 256) <> "..."
      assert length(Worker.info!(worker).cmd) == 15
      assert Worker.stop(worker) == :ok
    end

    # A string of that size takes seconds.
    @tag :long
    test "an environment of the BEAM that has grown too large fails the start, and nothing else" do
      {:ok, bystander} = Worker.start_link(cmd: ["sleep", "600"])
      os_pid = Worker.os_pid!(bystander)
      System.put_env("SNAKEPIT_TEST_LARGE", String.duplicate("x", 17_000_000))
      on_exit(fn -> System.delete_env("SNAKEPIT_TEST_LARGE") end)
      assert {:error, %Error{reason: :e2big} = error} = Snakepit.run("true", [])
      assert Exception.message(error) =~ "environment of the BEAM"
      System.delete_env("SNAKEPIT_TEST_LARGE")
      assert Snakepit.cmd("true", []) == {"", 0}
      assert Worker.os_pid!(bystander) == os_pid
      assert Worker.stop(bystander) == :ok
    end

    test "too much output ends it" do
      assert {output, :max_output} = Snakepit.cmd("yes", [], max_output: 100_000)
      assert output == :binary.copy("y\n", 50_000)
      assert {["y\ny\ny"], :max_output} = Snakepit.cmd("yes", [], max_output: 5, into: [])
      assert {output, 0} = Snakepit.cmd("seq", ["10"], max_output: 21)
      assert byte_size(output) == 21
    end

    test "what cannot be executed raises, and so does what cannot be meant" do
      error = assert_raise Error, fn -> Snakepit.cmd("no-such-program-anywhere", []) end
      assert %Error{reason: :enoent, step: :execve} = error
      assert Exception.message(error) =~ ~s(cannot execute "no-such-program-anywhere")

      error = assert_raise Error, fn -> Snakepit.cmd("true", [], cd: "/no/such/directory") end
      assert Exception.message(error) =~ ~s("/no/such/directory": no such file or directory)

      unknown = assert_raise ArgumentError, fn -> Snakepit.cmd("true", [], time_out: 5) end
      assert unknown.message =~ ":timeout"
      refute unknown.message =~ ":stdio"

      for {args, opts} <- [
            {["a\0b"], []},
            {[1], []},
            {"string", []},
            {[], [timeout: -1]},
            {[], [max_output: "1"]},
            {[], [stdio: :tail]},
            {[], [tiemout: 1]},
            {[], [input: :x]}
          ] do
        assert_raise ArgumentError, fn -> Snakepit.cmd("true", args, opts) end
      end
    end

    test "a collector that raises leaves nothing" do
      token = Family.token()
      device = File.stream!("/no/such/file")

      assert_raise File.Error, fn ->
        Snakepit.cmd("sh", ["-c", "echo x; sleep #{token}"], into: device)
      end

      assert Family.members(token) == []
    end

    test "nothing is left when the caller is killed, and no message when it goes on" do
      token = Family.token()
      caller = spawn(fn -> Snakepit.cmd("sh", ["-c", Family.script(token)]) end)
      Family.await(token)
      Process.exit(caller, :kill)
      eventually(fn -> Family.members(token) == [] end)
      eventually(fn -> ProcessRegistry.list_all_workers() == [] end)

      Snakepit.cmd("true", [])
      Snakepit.run("no-such-program-anywhere", [])
      Snakepit.cmd("sleep", [token], timeout: 50)
      Snakepit.stream!(["yes"]) |> Enum.take(1)
      assert Process.info(self(), [:messages, :monitors]) == [messages: [], monitors: []]
    end

    test "nothing is left when the BEAM is killed" do
      beam = Beam.start()
      token = Family.token()
      Beam.tell(beam, "Snakepit.cmd(\"sh\", [\"-c\", #{inspect(Family.script(token))}])")
      Family.await(token)
      Beam.kill(beam)
      eventually(fn -> Family.members(token) == [] end)
    end
  end

  describe "run/3" do
    test "returns how a program ended, with all that it wrote and used" do
      script = "echo out; echo err >&2; exit 3"
      assert {:ok, %Result{} = result} = Snakepit.run("sh", ["-c", script])
      assert %{status: 3, signal: nil, stdout: "out\n", stderr: "err\n"} = result
      assert %{user_us: user, system_us: system, max_rss_kb: rss} = result.usage
      assert user + system > 0 and rss > 0
      assert is_integer(result.duration_ms)

      assert {:ok, %Result{status: nil, signal: :sigkill}} =
               Snakepit.run("sh", ["-c", "kill -KILL $$"])

      assert {:ok, %Result{stdout: ["x"], stderr: ""}} = Snakepit.run("printf", ["x"], into: [])

      merged = Snakepit.run("sh", ["-c", script], stderr_to_stdout: true)
      assert {:ok, %Result{stdout: "out\nerr\n", stderr: ""}} = merged
    end

    @tag :long
    test "returns an error for one that takes too long, with what there was" do
      assert {:error, %Error{operation: :run, reason: :timeout} = error} =
               Snakepit.run("sh", ["-c", "echo so far; exec sleep 600"], timeout: 2_000)

      assert error.output == "so far\n"
      assert Exception.message(error) =~ ":timeout"
    end

    test "returns an error for everything else" do
      assert {:error, %Error{reason: :max_output, output: "y\ny\ny"}} =
               Snakepit.run("yes", [], max_output: 5)

      assert {:error, %Error{reason: :enoent, step: :execve}} =
               Snakepit.run("no-such-program-anywhere", [])
    end
  end

  describe "stream!/2" do
    test "gives the output as it comes, in packets or lines" do
      assert Snakepit.stream!(["seq", "3"], packet: :line) |> Enum.to_list() == [
               "1\n",
               "2\n",
               "3\n"
             ]

      assert Snakepit.stream!(["cat"], input: "x") |> Enum.join() == "x"
      stream = Snakepit.stream!(["printf", "a\\nb"], packet: :line)
      assert Enum.to_list(stream) == ["a\n", "b"]
      assert Snakepit.stream!(["seq", "100000"]) |> Enum.join() |> byte_size() == 588_895
    end

    test "starts when it is run, each time anew" do
      path = temporary_path("runs")
      stream = Snakepit.stream!(["sh", "-c", "echo x >> #{path}; cat #{path}"])
      refute File.exists?(path)
      assert Enum.join(stream) == "x\n"
      assert Enum.join(stream) == "x\nx\n"
    end

    test "abandoned, it ends the process" do
      token = Family.token()
      stream = Snakepit.stream!(["sh", "-c", "sleep #{token} & yes"])
      assert [_packet] = Enum.take(stream, 1)
      assert Family.members(token) == []

      assert_raise RuntimeError, fn -> Enum.each(stream, fn _ -> raise "enough" end) end
      assert Family.members(token) == []
      assert ProcessRegistry.list_all_workers() == []
    end

    test "what is not read makes the process wait" do
      path = temporary_path("written")
      script = "for i in $(seq 200); do head -c 10000 /dev/zero; echo $i > #{path}; done"

      Snakepit.stream!(["sh", "-c", script])
      |> Enum.reduce_while(nil, fn _packet, nil ->
        # The buffers fill, and then nothing moves.
        assert standstill(fn -> number_in(path) end) < 150
        {:halt, nil}
      end)
    end

    test "raises for what cannot be started and for failure" do
      assert_raise Error, ~r/no-such-program/, fn ->
        Snakepit.stream!(["no-such-program-anywhere"]) |> Enum.to_list()
      end

      error =
        assert_raise Error, ~r/status 3.*last words/s, fn ->
          Snakepit.stream!(["sh", "-c", "echo last words >&2; exit 3"]) |> Enum.to_list()
        end

      assert %{reason: :exit_status, status: 3, output: "last words\n"} = error

      error =
        assert_raise Error, ~r/ended by sigkill/, fn ->
          Snakepit.stream!(["sh", "-c", "kill -KILL $$"]) |> Enum.to_list()
        end

      assert %{reason: :exit_signal, signal: :sigkill} = error

      # The lines before one that is too long come first.
      stream = Snakepit.stream!(["printf", "1\\n22\\n333\\n"], packet: :line, max_packet: 3)
      assert Enum.take(stream, 2) == ["1\n", "22\n"]
      assert_raise Error, ~r/:max_packet/, fn -> Enum.to_list(stream) end

      assert_raise ArgumentError, fn -> Snakepit.stream!("yes") end
      assert_raise ArgumentError, fn -> Snakepit.stream!(["yes"], packet: 4) end
    end

    test "nothing is left when its process is killed" do
      token = Family.token()
      reader = spawn(fn -> Snakepit.stream!(["sleep", token]) |> Stream.run() end)
      eventually(fn -> length(Family.members(token)) == 1 end)
      Process.exit(reader, :kill)
      eventually(fn -> Family.members(token) == [] end)
    end
  end
end
