defmodule Snakepit.Worker.ReadTest do
  # Output that waits until somebody asks for it.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  defp reads(script, opts \\ []),
    do: Worker.start_link([cmd: sh(script), stdio: :pipe, output: :read] ++ opts)

  test "lines, and the last one without a newline, then the end of it" do
    for opts <- [[packet: :line], []], what <- [:line, :any], opts != [] or what == :line do
      {:ok, worker} = reads("printf 'one\\ntwo\\nthree'", opts)
      answers = for _ <- 1..4, do: Worker.read(worker, what, 20_000)
      assert answers == [{:ok, "one\n"}, {:ok, "two\n"}, {:ok, "three"}, :eof]
      assert await_down(worker) == :normal
    end
  end

  test "bytes, as many as were asked for and fewer only at the end" do
    {:ok, worker} = reads("printf 12345; read _; printf 678; exit 3")
    assert Worker.read(worker, 2) == {:ok, "12"}
    assert Worker.read(worker) == {:ok, "345"}
    assert {:error, %Error{operation: :read, reason: :timeout}} = Worker.read(worker, 2, 20)
    assert Worker.write(worker, "\n") == :ok
    assert Worker.read(worker, 2) == {:ok, "67"}
    assert Worker.read(worker, 2) == {:ok, "8"}
    assert Worker.read(worker, 2) == :eof
    assert await_down(worker) == {:exit_status, 3}
  end

  test "packets with a length of every size" do
    for packet <- [1, 2, 4] do
      {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: packet, output: :read)
      for data <- ["a", "", "bc"], do: assert(Worker.write(worker, data) == :ok)
      for data <- ["a", "", "bc"], do: assert(Worker.read(worker) == {:ok, data})
      assert {:error, %Error{reason: :einval}} = Worker.read(worker, 2)
      assert {:error, %Error{reason: :einval}} = Worker.read(worker, :line)
      assert {:error, %Error{reason: :einval}} = Worker.request(worker, "x")
      assert Worker.close_input(worker) == :ok
      assert Worker.read(worker) == :eof
      assert await_down(worker) == :normal
    end
  end

  test "nothing is read that nobody asks for: the process waits" do
    path = temporary_path("written")
    script = "for i in $(seq 1000); do head -c 9999 /dev/zero; echo; echo $i > #{path}; done"
    {:ok, worker} = reads(script)
    assert standstill(fn -> number_in(path) end) < 10
    assert {:ok, line} = Worker.read(worker, :line)
    assert byte_size(line) == 10_000
    # A chunk more.
    assert standstill(fn -> number_in(path) end) < 20
    assert read_all(worker, byte_size(line)) == 10_000_000
  end

  defp read_all(worker, size) do
    case Worker.read(worker, :any, 20_000) do
      {:ok, data} -> read_all(worker, size + byte_size(data))
      :eof -> size
    end
  end

  test "readers are served in their order" do
    {:ok, worker} = reads("cat", packet: :line)
    test = self()

    readers =
      for number <- 1..5 do
        reader = spawn_link(fn -> send(test, {number, Worker.read(worker)}) end)
        eventually(fn -> Insides.waiting_readers(worker) == number end)
        reader
      end

    assert length(readers) == 5
    assert Worker.write(worker, for(n <- 1..5, do: "#{n}\n")) == :ok

    for number <- 1..5 do
      line = "#{number}\n"
      assert_receive {^number, {:ok, ^line}}, 20_000
    end
  end

  test "a reader that gives up, or dies, takes nothing with it" do
    {:ok, worker} = reads("cat")
    late = Task.async(fn -> Worker.read(worker, 10, 100) end)
    eventually(fn -> Insides.waiting_readers(worker) == 1 end)
    killed = spawn(fn -> Worker.read(worker, 10) end)
    eventually(fn -> Insides.waiting_readers(worker) == 2 end)
    last = Task.async(fn -> Worker.read(worker, 5, 20_000) end)
    eventually(fn -> Insides.waiting_readers(worker) >= 2 end)
    assert Worker.write(worker, "12345") == :ok
    assert {:error, %Error{reason: :timeout}} = Task.await(late)
    assert end_by(killed, fn -> Process.exit(killed, :kill) end) == :killed
    # All of it, and those behind need not wait for more output.
    assert Task.await(last, 20_000) == {:ok, "12345"}
    assert {:error, %Error{reason: :timeout}} = Worker.read(worker, :any, 0)
    assert Insides.reading_timers(worker) == %{}
  end

  test "output that is there is for those who do not wait" do
    {:ok, worker} = reads("printf there; exec sleep 600")
    eventually(fn -> Worker.read(worker, :any, 0) == {:ok, "there"} end)
  end

  test "a program that closes its output and runs on" do
    {:ok, worker} = reads("echo last; exec >&-; read _; exit 4")
    assert Worker.read(worker, :line, 20_000) == {:ok, "last\n"}
    assert Worker.read(worker, :line, 20_000) == :eof
    assert Worker.read(worker, 1, 20_000) == :eof
    assert {:ok, _os_pid} = Worker.os_pid(worker)
    assert Worker.write(worker, "\n") == :ok
    # Its end has been read: nothing keeps the worker.
    assert await_down(worker, 4_000) == {:exit_status, 4}
  end

  test "a line that is too long is an error of its reader, and can be read as bytes" do
    {:ok, worker} = reads("printf 1234567890; read _; echo", max_packet: 10)
    assert {:error, %Error{reason: :max_packet}} = Worker.read(worker, :line)
    assert Worker.read(worker, 4) == {:ok, "1234"}
    assert Worker.write(worker, "\n") == :ok
    assert Worker.read(worker, :line) == {:ok, "567890\n"}
  end

  test "a packet that is too long is no end of output, and ends the worker after those before it" do
    for {packet, script} <- [
          {:line, "echo fits; echo 12345678901; sleep 600"},
          {4, "printf '\\0\\0\\0\\5fits\\n\\0\\0\\0\\13'; sleep 600"}
        ] do
      {:ok, worker} = reads(script, packet: packet, max_packet: 10)
      assert Worker.read(worker, :any, 20_000) == {:ok, "fits\n"}

      capture_log(fn ->
        assert {:error, %Error{reason: reason}} = Worker.read(worker, :any, 20_000)
        assert reason in [:max_packet, :worker_down]
        assert_receive {:EXIT, ^worker, :max_packet}, 20_000
      end)
    end
  end

  describe "after the end of the process" do
    test "what it has written is there to be read, and everything else is gone" do
      {:ok, worker} = reads("read _; seq 1000; exit 3", id: "gone")
      os_pid = Worker.os_pid!(worker)
      :ok = Worker.write(worker, "\n")
      eventually(fn -> not ProcessRegistry.worker_registered?("gone") end)
      refute ProcScan.running?(os_pid)
      assert {:error, %Error{reason: :worker_down} = error} = Worker.os_pid(worker)
      assert Exception.message(error) =~ "status 3"
      assert {:error, %Error{reason: :worker_down}} = Worker.write(worker, "x")
      for n <- 1..1000, do: assert(Worker.read(worker, :line) == {:ok, "#{n}\n"})
      assert Process.alive?(worker)
      assert Worker.read(worker) == :eof
      assert await_down(worker) == {:exit_status, 3}
    end

    test "output that nobody reads is kept for its :linger, counted from the last reader" do
      {:ok, worker} = reads("seq 10; exit 3", linger: 400)
      eventually(fn -> ended?(worker) end)
      begun = System.monotonic_time(:millisecond)
      assert Worker.read(worker, :line) == {:ok, "1\n"}
      assert await_down(worker) == {:exit_status, 3}
      assert System.monotonic_time(:millisecond) - begun >= 400
      assert {:error, %Error{reason: :worker_down}} = Worker.read(worker)

      {:ok, worker} = reads("seq 10; exit 3", linger: 0)
      assert await_down(worker) == {:exit_status, 3}
    end

    test "a worker that is stopped, or whose supervisor ends, does not wait for readers" do
      {:ok, worker} = reads("echo", linger: 600_000)
      eventually(fn -> ended?(worker) end)
      assert Worker.stop(worker) == :ok
      assert await_down(worker) in [:normal, :noproc]

      options = [cmd: sh("echo; exit 3"), stdio: :pipe, output: :read, linger: 600_000]
      {:ok, supervisor} = Supervisor.start_link([{Worker, options}], strategy: :one_for_one)
      [{_id, worker, _type, _modules}] = Supervisor.which_children(supervisor)
      eventually(fn -> ended?(worker) end)
      assert end_by(worker, fn -> Supervisor.stop(supervisor) end) == :shutdown
    end

    test "a supervisor starts it again when it has been read" do
      options = [cmd: sh("echo $$"), stdio: :pipe, output: :read, name: :read_again]
      {:ok, supervisor} = Supervisor.start_link([{Worker, options}], strategy: :one_for_one)

      [first, second] =
        for _ <- 1..2 do
          worker = eventually(fn -> Process.whereis(:read_again) end)
          {:ok, line} = Worker.read(worker, :line, 20_000)
          assert end_by(worker, fn -> :eof = Worker.read(worker) end) == :normal
          line
        end

      assert first != second
      Supervisor.stop(supervisor)
    end

    test "those who wait get what there is" do
      {:ok, worker} = reads("read _; printf rest")
      readers = for _ <- 1..3, do: Task.async(fn -> Worker.read(worker, 100, 20_000) end)
      eventually(fn -> Insides.waiting_readers(worker) == 3 end)
      assert Worker.write(worker, "\n") == :ok
      assert Enum.sort(Task.await_many(readers, 20_000)) == [:eof, :eof, {:ok, "rest"}]
      assert await_down(worker) == :normal
    end
  end

  test "what cannot be read says why" do
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)
    assert {:error, %Error{reason: :einval} = error} = Worker.read(worker)
    assert Exception.message(error) =~ ":output"
    assert {:error, %Error{reason: :einval} = error} = Worker.read_stderr(worker)
    assert Exception.message(error) =~ ":stderr"
    assert Worker.request(worker, "still there\n") == {:ok, "still there\n"}
    {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"])
    assert {:error, %Error{reason: :einval}} = Worker.read(worker)

    for what <- [0, -1, :all, "x"],
        do: assert_raise(ArgumentError, fn -> Worker.read(worker, what) end)
  end
end
