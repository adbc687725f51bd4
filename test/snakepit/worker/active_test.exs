defmodule Snakepit.Worker.ActiveTest do
  # Output that is sent as far as somebody asks for it.
  use Snakepit.Test.WorkerCase, async: false

  defp sends(script, opts),
    do: Worker.start_link([id: "active", cmd: sh(script), output: {:send, self()}] ++ opts)

  defp assert_lines(lines) do
    for line <- lines do
      line = "#{line}\n"
      assert_receive {Worker, "active", {:output, ^line}}, 20_000
    end
  end

  test "so many messages, then nothing until there is more demand, then the end" do
    {:ok, worker} = sends("seq 10; read _", stdio: :pipe, packet: :line, active: 2)
    assert_lines(1..2)
    assert_receive {Worker, "active", :passive}, 20_000
    assert Worker.activate(worker, :once) == :ok
    assert_lines([3])
    assert_receive {Worker, "active", :passive}, 20_000
    refute_received {Worker, "active", _}
    assert Worker.activate(worker, 5) == :ok
    assert_lines(4..8)
    assert_receive {Worker, "active", :passive}, 20_000
    assert Worker.activate(worker, true) == :ok
    assert_lines(9..10)
    refute_received {Worker, "active", _}
    assert Worker.close_input(worker) == :ok
    assert_receive {Worker, "active", :eof}, 20_000
    refute_received {Worker, "active", _}
  end

  test "the process waits meanwhile" do
    path = temporary_path("written")
    script = "for i in $(seq 1000); do head -c 9999 /dev/zero; echo; echo $i > #{path}; done"
    {:ok, worker} = sends(script, active: :once)
    assert standstill(fn -> number_in(path) end) < 30
    assert Worker.activate(worker, true) == :ok
    assert_receive {Worker, "active", :eof}, 20_000
  end

  test "what it has written when it ends is sent on demand still" do
    {:ok, worker} = sends("seq 4; exit 3", active: :once)
    eventually(fn -> ended?(worker) end)
    assert_lines([1])
    assert_receive {Worker, "active", :passive}
    assert Worker.activate(worker, 2) == :ok
    assert_lines(2..3)
    assert_receive {Worker, "active", :passive}
    refute_received {Worker, "active", _}
    assert Worker.activate(worker, 2) == :ok
    assert_lines([4])
    assert_receive {Worker, "active", :eof}
    assert await_down(worker) == {:exit_status, 3}
  end

  test "the end is told to those who have said how active it is to be" do
    {:ok, worker} = sends("echo 1", active: true)
    assert await_down(worker) == :normal
    assert_lines([1])
    assert_receive {Worker, "active", :eof}

    {:ok, worker} = sends("echo 1", [])
    assert await_down(worker) == :normal
    assert_lines([1])
    refute_received {Worker, "active", :eof}
  end

  test "bytes come as they are, in messages that were asked for" do
    {:ok, worker} = sends("cat", stdio: :pipe, active: :once)
    assert Worker.write(worker, "one") == :ok
    assert_receive {Worker, "active", {:output, "one"}}, 20_000
    assert Worker.write(worker, "two") == :ok
    assert Worker.activate(worker, 1) == :ok
    assert_receive {Worker, "active", {:output, "two"}}, 20_000
    assert Worker.stop(worker) == :ok
  end

  test "only messages can be asked for" do
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe)
    assert {:error, %Error{operation: :activate, reason: :einval}} = Worker.activate(worker, 1)

    for count <- [0, false, :twice],
        do: assert_raise(ArgumentError, fn -> Worker.activate(worker, count) end)
  end
end
