defmodule Snakepit.Worker.DuplexTest do
  # What must hold of the pipes of workers, whatever happens to those who use them.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Family, OpenFiles}

  defp pipes, do: OpenFiles.matching(~r/^pipe:/)

  test "a grandchild that holds the pipe keeps neither the worker nor its reader, and is gone" do
    token = Family.token()
    script = "sh -c 'exec sleep 600' #{token} & echo started; exit 3"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, output: :read)
    assert Worker.read(worker, :line, 20_000) == {:ok, "started\n"}
    assert Worker.read(worker, :line, 20_000) == :eof
    assert await_down(worker) == {:exit_status, 3}
    assert ProcScan.with_argument(token) == []
  end

  test "callers that are killed in the middle leave the others what is theirs" do
    go = temporary_path("go")
    script = "until [ -e '#{go}' ]; do sleep 0.01; done; exec cat"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, output: :read)
    much = :binary.copy("x", 500_000)
    reader = spawn(fn -> Worker.read(worker, 600_000) end)
    writer = spawn(fn -> Worker.write(worker, much) end)
    eventually(fn -> Insides.pending_writes(worker) == 1 end)

    for caller <- [reader, writer],
        do: assert(end_by(caller, fn -> Process.exit(caller, :kill) end) == :killed)

    behind = Task.async(fn -> Worker.write(worker, "behind") end)
    File.write!(go, "")
    assert Worker.read(worker, 500_006, 20_000) == {:ok, much <> "behind"}
    assert Task.await(behind) == :ok
    assert Worker.stop(worker) == :ok
  end

  test "much both ways at once, with a reader that is slow" do
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, output: :read)
    data = :crypto.strong_rand_bytes(5_000_000)
    writer = Task.async(fn -> {Worker.write(worker, data), Worker.close_input(worker)} end)
    assert read_in_pieces(worker, []) == data
    assert Task.await(writer) == {:ok, :ok}
    assert await_down(worker) == :normal
  end

  defp read_in_pieces(worker, pieces) do
    case Worker.read(worker, :rand.uniform(100_000), 20_000) do
      {:ok, piece} -> read_in_pieces(worker, [pieces, piece])
      :eof -> IO.iodata_to_binary(pieces)
    end
  end

  test "no descriptor, process or message is left, however it ends" do
    before = pipes()
    processes = length(Process.list())
    much = :binary.copy("x", 200_000)
    options = [stdio: :pipe, output: :read, stderr: :read, linger: 1]

    for how <- [:stop, :exit, :kill, :lingers] do
      {:ok, worker} = Worker.start_link([cmd: sh("echo; read _; exec cat")] ++ options)
      callers = for call <- calls(worker, much), do: spawn(call)
      eventually(fn -> Insides.pending_writes(worker) >= 1 end)

      case how do
        :stop -> assert Worker.stop(worker) == :ok
        :exit -> Process.exit(worker, :shutdown)
        :kill -> Process.exit(worker, :kill)
        :lingers -> kill(Worker.os_pid!(worker))
      end

      await_down(worker)
      for caller <- callers, do: eventually(fn -> not Process.alive?(caller) end)
    end

    eventually(fn -> pipes() -- before == [] end)
    eventually(fn -> length(Process.list()) <= processes end)
    flush_exits()
    refute_received _message
  end

  defp calls(worker, much) do
    [
      fn -> Worker.read(worker, 10_000_000) end,
      fn -> Worker.read_stderr(worker) end,
      fn -> Worker.write(worker, much) end,
      fn -> Worker.write(worker, much, 20_000) end
    ]
  end

  defp flush_exits do
    receive do
      {:EXIT, _pid, _reason} -> flush_exits()
      {:DOWN, _monitor, :process, _pid, _reason} -> flush_exits()
    after
      0 -> :ok
    end
  end
end
