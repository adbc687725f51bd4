defmodule Snakepit.Worker.OutputTest do
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  test "lines go to a process, a function, or the log; both streams in order" do
    script = "echo one; echo two >&2; printf three"
    {:ok, worker} = Worker.start_link(id: "sender", cmd: sh(script), output: {:send, self()})
    assert await_down(worker) == :normal

    for line <- ["one\n", "two\n", "three"] do
      assert_received {Worker, "sender", {:output, ^line}}
    end

    test = self()
    {:ok, worker} = Worker.start_link(cmd: sh(script), output: &send(test, {:heard, &1}))
    assert await_down(worker) == :normal
    assert_received {:heard, "one\n"}

    log =
      capture_log(fn ->
        {:ok, worker} = Worker.start_link(id: "logger", cmd: sh(script), output: :logger)
        assert await_down(worker) == :normal
      end)

    assert log =~ "logger: one"
    assert log =~ "logger: three"
  end

  test "what was written last is delivered, also if it was killed right after" do
    # More than what is read before the end is told.
    for _ <- 1..10 do
      script = "seq 50000; kill -KILL $$"
      {:ok, worker} = Worker.start_link(id: "last", cmd: sh(script), output: {:send, self()})
      assert await_down(worker) == {:exit_signal, :sigkill}
      assert_received {Worker, "last", {:output, "50000\n"}}
      flush()
    end
  end

  test "a function that does not keep up makes the process wait" do
    path = temporary_path("written")
    test = self()
    script = "for i in $(seq 1000); do head -c 10000 /dev/zero; echo; echo $i > #{path}; done"

    slow = fn _line ->
      send(test, :called)
      receive(do: (:go_on -> :ok))
    end

    {:ok, worker} = Worker.start_link(cmd: sh(script), output: slow)
    assert_receive :called, 5_000

    # The first number may not be written yet, and any is written after the file was emptied.
    assert standstill(fn -> number_in(path) end) < 500
    Process.exit(worker, :kill)
  end

  test "the tail is bounded, and of bytes that are no text" do
    {:ok, worker} = Worker.start_link(cmd: sh("seq 100000; sleep 600"), output: fn _ -> :ok end)

    eventually(fn ->
      match?({:ok, <<_::binary-size(65_529), "100000\n">>}, Worker.output_tail(worker))
    end)

    log =
      capture_log(fn ->
        {:ok, worker} = Worker.start_link(cmd: sh("printf 'bad \\377\\376 bytes'; exit 1"))
        assert await_down(worker) == {:exit_status, 1}
      end)

    assert log =~ "bad \uFFFD bytes"
  end

  test "the tail without output option is the guardian's" do
    {:ok, worker} = Worker.start_link(cmd: sh("echo kept; sleep 600"))
    eventually(fn -> Worker.output_tail(worker) == {:ok, "kept\n"} end)
  end

  test "a pipe carries packets both ways" do
    for {packet, question, answer} <- [
          {:line, "a b\n", "a b\n"},
          {4, "any\0bytes\n", "any\0bytes\n"}
        ] do
      {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: packet)
      assert Worker.request(worker, question) == {:ok, answer}
      assert Worker.close_input(worker) == :ok
      assert await_down(worker) == :normal
    end
  end

  test "requests of many are answered each with its own" do
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)

    1..200
    |> Task.async_stream(fn n -> {"#{n}\n", Worker.request(worker, "#{n}\n")} end,
      max_concurrency: 50
    )
    |> Enum.each(fn {:ok, {question, answer}} -> assert answer == {:ok, question} end)
  end

  # Answers a number with a line of so many bytes, and says where it begins and ends.
  @answers_at_length """
  import sys
  for line in sys.stdin:
      size = int(line)
      print("<" + "x" * (size - 3) + ">", flush=True)
  """

  defp answer_of(size), do: "<" <> :binary.copy("x", size - 3) <> ">\n"

  test "an answer of any length is one answer" do
    options = [cmd: ["python3", "-c", @answers_at_length], stdio: :pipe, packet: :line]
    {:ok, worker} = Worker.start_link(options)

    for size <- [10, 65_535, 65_536, 65_537, 100_000, 3_000_000, 10],
        do: assert(Worker.request(worker, "#{size}\n") == {:ok, answer_of(size)})
  end

  test "in a pool nobody gets a piece of another's answer" do
    worker = [cmd: ["python3", "-c", @answers_at_length], stdio: :pipe, packet: :line]
    pool = start_supervised!({Snakepit.Pool, size: 2, worker: worker})

    1..60
    |> Task.async_stream(
      fn n ->
        size = if rem(n, 2) == 0, do: 100_000 + n, else: 100 + n
        ask = fn worker -> Worker.request(worker, "#{size}\n") end
        {size, Snakepit.Pool.with_worker(pool, ask, timeout: 60_000)}
      end,
      max_concurrency: 4,
      timeout: 60_000
    )
    |> Enum.each(fn {:ok, {size, answer}} -> assert answer == {:ok, answer_of(size)} end)
  end

  test "a line or packet beyond :max_packet ends the worker, and nobody gets a piece of it" do
    line = [cmd: ["python3", "-c", @answers_at_length], stdio: :pipe, packet: :line]
    four = [cmd: ["cat"], stdio: :pipe, packet: 4]

    for {options, fits, exceeds} <- [
          {line, "1000\n", "1001\n"},
          {four, :binary.copy("x", 1000), :binary.copy("x", 1001)}
        ] do
      {:ok, worker} = Worker.start_link([max_packet: 1000] ++ options)
      assert {:ok, answer} = Worker.request(worker, fits)
      assert byte_size(answer) == 1000

      log =
        capture_log(fn ->
          assert {:error, %Error{reason: :worker_down} = error} = Worker.request(worker, exceeds)
          assert Exception.message(error) =~ ":max_packet"
          assert_receive {:EXIT, ^worker, :max_packet}, 5_000
        end)

      assert log =~ "longer than its :max_packet"
    end
  end

  test "what follows a line beyond :max_packet is no answer either" do
    # In two writes, so that its end may come by itself.
    script =
      "import sys\nw = sys.stdout.write\nfor line in sys.stdin:\n w('x' * 1000)\n" <>
        " sys.stdout.flush()\n w('\\n')\n sys.stdout.flush()\n"

    for _ <- 1..10 do
      options = [cmd: ["python3", "-c", script], stdio: :pipe, packet: :line, max_packet: 1000]
      {:ok, worker} = Worker.start_link(options)

      capture_log(fn ->
        assert {:error, %Error{reason: :worker_down}} = Worker.request(worker, "go\n")
        assert_receive {:EXIT, ^worker, :max_packet}, 20_000
      end)
    end
  end

  test "an answer that never comes is not replaced by the next one" do
    # Answers every line but "lost".
    script = "while read a; do [ $a = lost ] || echo $a; done"
    options = [cmd: sh(script), stdio: :pipe, packet: :line, answer_timeout: 300]
    {:ok, worker} = Worker.start_link(options)
    assert Worker.request(worker, "one\n") == {:ok, "one\n"}
    assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "lost\n", 50)

    capture_log(fn ->
      assert {:error, %Error{reason: :worker_down} = error} = Worker.request(worker, "two\n")
      assert Exception.message(error) =~ ":answer_timeout"
      assert_receive {:EXIT, ^worker, :unanswered}, 5_000
    end)
  end

  test "a second answer to one request is not the answer to the next one" do
    options = [cmd: sh("while read a; do echo $a; echo more; done"), stdio: :pipe, packet: :line]
    {:ok, worker} = Worker.start_link(options)

    capture_log(fn ->
      assert {:ok, "one\n"} = Worker.request(worker, "one\n")
      assert_receive {:EXIT, ^worker, :unexpected_output}, 5_000
    end)

    # Unless there is somebody for such packets.
    {:ok, worker} = Worker.start_link([output: {:send, self()}, id: "more"] ++ options)
    assert {:ok, "one\n"} = Worker.request(worker, "one\n")
    assert_receive {Worker, "more", {:output, "more\n"}}, 5_000
    assert {:ok, "two\n"} = Worker.request(worker, "two\n")
  end

  test "a request whose caller has given up before its turn is not sent" do
    [path, go] = [temporary_path("asked"), temporary_path("go")]
    wait = "until [ -e '#{go}' ]; do sleep 0.01; done"
    script = "while read a; do echo $a >> '#{path}'; #{wait}; echo $a; done"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, packet: :line)
    first = Task.async(fn -> Worker.request(worker, "first\n", 20_000) end)
    eventually(fn -> File.read(path) == {:ok, "first\n"} end)
    assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "second\n", 20)
    File.write!(go, "")
    assert Task.await(first, 20_000) == {:ok, "first\n"}
    assert Worker.request(worker, "third\n") == {:ok, "third\n"}
    assert File.read!(path) == "first\nthird\n"
  end

  test "a late answer goes to nobody, and the next request gets its own" do
    go = temporary_path("go")
    script = "read a; until [ -e '#{go}' ]; do sleep 0.01; done; echo $a; exec cat"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, packet: :line)
    assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "late\n", 50)
    File.write!(go, "")
    assert Worker.request(worker, "own\n") == {:ok, "own\n"}
  end

  test "much in both directions at once: nobody waits for the other" do
    {:ok, worker} =
      Worker.start_link(cmd: ["cat"], stdio: :pipe, output: {:send, self()}, id: "cat")

    data = :binary.copy("0123456789", 300_000)
    assert Worker.write(worker, data) == :ok
    assert Worker.close_input(worker) == :ok
    assert await_down(worker) == :normal
    assert received("cat", "") == data
  end

  test "a process that ends without reading its input has its last words heard all the same" do
    path = temporary_path("go")
    test = self()

    script = "read a; echo one; while [ ! -e '#{path}' ]; do sleep 0.01; done; echo two"

    busy = fn line ->
      send(test, {:heard, line})
      if line == "one\n", do: receive(do: (:go_on -> :ok))
    end

    for packet <- [:line, :raw] do
      {:ok, worker} =
        Worker.start_link(cmd: sh(script), stdio: :pipe, packet: packet, output: busy)

      {:ok, process} = Snakepit.OSProcess.lookup(Worker.os_pid!(worker))

      # More than fits into the connection.
      writer = Task.async(fn -> Worker.write(worker, "go\n" <> :binary.copy("x", 1_000_000)) end)
      assert_receive {:heard, "one\n"}, 5_000
      File.write!(path, "")
      eventually(fn -> not Snakepit.OSProcess.alive?(process) end)
      assert {:error, %Error{reason: reason}} = Task.await(writer)
      assert reason in [:epipe, :econnreset]

      send(worker, :go_on)
      assert await_down(worker) == :normal
      assert_received {:heard, "two\n"}
      File.rm!(path)
    end
  end

  test "what is no data is refused before anybody is bothered with it" do
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)
    assert_raise ArgumentError, fn -> Worker.write(worker, :text) end
    assert_raise ArgumentError, fn -> Worker.request(worker, ["a", 256]) end
    assert Worker.request(worker, ["a", [?b | "c"], "\n"]) == {:ok, "abc\n"}
  end

  test "a request to a worker that ends, has ended, or has no pipe is an error" do
    {:ok, worker} = Worker.start_link(cmd: sh("read a; exit 5"), stdio: :pipe, packet: :line)
    assert {:error, %Error{reason: :worker_down} = error} = Worker.request(worker, "x\n")
    assert Exception.message(error) =~ "status 5"
    assert await_down(worker) in [{:exit_status, 5}, :noproc]
    assert {:error, %Error{reason: :worker_down}} = Worker.request(worker, "x\n")

    {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"])
    assert {:error, %Error{reason: :einval} = error} = Worker.request(worker, "x\n")
    assert Exception.message(error) =~ ":stdio"
    assert {:error, %Error{reason: :einval}} = Worker.write(worker, "x\n")

    for packet <- [[], [packet: :raw]] do
      {:ok, worker} = Worker.start_link([cmd: ["cat"], stdio: :pipe] ++ packet)
      assert {:error, %Error{reason: :einval} = error} = Worker.request(worker, "x")
      assert Exception.message(error) =~ "packet: :line, 1, 2 or 4"
    end
  end

  defp flush do
    receive do
      {Worker, _, _} -> flush()
    after
      0 -> :ok
    end
  end

  defp received(id, data) do
    receive do
      {Worker, ^id, {:output, more}} -> received(id, data <> more)
    after
      0 -> data
    end
  end

  test "half a line is no answer: the process may have been killed in the middle of it" do
    options = [cmd: sh("read _; printf 110; kill -KILL $$"), stdio: :pipe, packet: :line]
    {:ok, worker} = Worker.start_link(options)
    assert {:error, %Error{reason: reason}} = Worker.request(worker, "x\n")
    assert reason in [:closed, :worker_down]
    assert_receive {:EXIT, ^worker, {:exit_signal, :sigkill}}, 5_000
  end
end
