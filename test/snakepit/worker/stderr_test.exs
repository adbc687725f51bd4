defmodule Snakepit.Worker.StderrTest do
  # Standard error apart from the output.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  @script "echo out; echo err >&2; exit 3"

  defp run(opts) do
    log =
      capture_log(fn ->
        {:ok, worker} = Worker.start_link([id: "errs", cmd: sh(@script)] ++ opts)
        assert await_down(worker) == {:exit_status, 3}
      end)

    [_before, tail] = String.split(log, "its last output:\n")
    tail
  end

  test "is a message of its own, or a line of the log, or an argument" do
    test = self()

    for stdio <- [[stdio: :pipe, packet: :line], []], output <- [:quiet, {:send, test}] do
      opts = [output: output] ++ stdio
      assert run([stderr: {:send, test}] ++ opts) =~ "err\n"
      assert_received {Worker, "errs", {:stderr, "err\n"}}
      if output != :quiet, do: assert_received({Worker, "errs", {:output, "out\n"}})

      assert run([stderr: &send(test, {:called, &1})] ++ opts) =~ "err\n"
      assert_received {:called, "err\n"}
      refute_received {:called, _}
    end

    log = capture_log(fn -> run(stdio: :pipe, stderr: :logger) end)
    assert log =~ "errs: err"
  end

  test "can be a part of the output, with stdio: :pipe too" do
    tail = run(stdio: :pipe, packet: :line, stderr: :merge, output: {:send, self()})
    assert tail =~ "out\nerr\n"
    assert_received {Worker, "errs", {:output, "out\n"}}
    assert_received {Worker, "errs", {:output, "err\n"}}
  end

  test "is kept for the log beside output that is passed on" do
    tail = run(stderr: :tail, output: {:send, self()})
    assert tail =~ "err\n"
    refute tail =~ "out"
    assert_received {Worker, "errs", {:output, "out\n"}}
    refute_received {Worker, "errs", _}
  end

  test "can be dropped" do
    tail = run(stderr: :null, output: {:send, self()})
    assert tail =~ "out\n"
    refute tail =~ "err\n"
    refute_received {Worker, "errs", {_stream, "err\n"}}
  end

  test "what is kept is there while the process runs" do
    for stderr <- [:tail, {:send, self()}, :read, :merge] do
      {:ok, worker} =
        Worker.start_link(cmd: sh("echo err >&2; exec sleep 600"), stdio: :pipe, stderr: stderr)

      if stderr == :read, do: assert({:ok, "err\n"} = Worker.read_stderr(worker, 20_000))
      eventually(fn -> Worker.output_tail(worker) == {:ok, "err\n"} end)
      assert Worker.stop(worker) == :ok
    end
  end

  test "can be read, beside the output and after the end of the process" do
    opts = [cmd: sh("echo out; echo err >&2; read _; echo more >&2"), stdio: :pipe]
    {:ok, worker} = Worker.start_link([output: :read, stderr: :read] ++ opts)
    assert Worker.read(worker, :line, 20_000) == {:ok, "out\n"}
    assert Worker.read_stderr(worker, 20_000) == {:ok, "err\n"}
    assert {:error, %Error{reason: :timeout}} = Worker.read_stderr(worker, 20)
    assert Worker.write(worker, "\n") == :ok
    assert Worker.read(worker, :line, 20_000) == :eof
    assert Worker.read_stderr(worker, 20_000) == {:ok, "more\n"}
    assert Worker.read_stderr(worker, 20_000) == :eof
    assert await_down(worker) == :normal
  end

  test "is drained while the worker waits until it is ready" do
    script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo ready; exec sleep 600"
    size = :counters.new(1, [])
    count = fn piece -> :counters.add(size, 1, byte_size(piece)) end

    {:ok, worker} =
      Worker.start_link(
        cmd: sh(script),
        stdio: :pipe,
        packet: :line,
        ready: {:output, "ready"},
        stderr: count
      )

    # What has no newline yet comes when it is long enough.
    assert :counters.get(size, 1) > 900_000
    assert Worker.stop(worker) == :ok
  end

  test "that nobody reads makes the process wait" do
    path = temporary_path("written")
    script = "for i in $(seq 1000); do head -c 10000 /dev/zero >&2; echo $i > #{path}; done"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stderr: :read)
    assert standstill(fn -> number_in(path) end) < 10
    assert Worker.stop(worker) == :ok
  end
end
