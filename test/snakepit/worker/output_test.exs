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

    assert {:ok, number} = standstill(fn -> File.read(path) end)
    assert number |> String.trim() |> String.to_integer() < 500
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
          {4, "any\0bytes\n", "any\0bytes\n"},
          {:raw, "raw", "raw"}
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

  test "a late answer goes to nobody, and the next request gets its own" do
    script = "read a; sleep 0.3; echo $a; exec cat"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, packet: :line)
    assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "late\n", 50)
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

      {:ok, process} = Snakepit.OSProcess.lookup(Worker.os_pid(worker))

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
