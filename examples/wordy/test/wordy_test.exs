defmodule WordyTest do
  use ExUnit.Case

  setup do: Snakepit.Test.check_orphans()

  test "the pool counts words" do
    assert Wordy.count("to be or not to be") == {:ok, 6}
  end

  test "a worker whose process is killed says so" do
    Process.flag(:trap_exit, true)
    {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "60"])
    Snakepit.Test.kill_os_process(worker)
    assert_receive {:EXIT, ^worker, {:exit_signal, :sigkill}}
  end

  test "commands and streams leave nothing behind" do
    Snakepit.Test.assert_no_orphans(fn ->
      assert Wordy.sort("b\na\n") == "a\nb\n"
      assert Wordy.grep("defmodule", __ENV__.file, 1) == ["defmodule WordyTest do\n"]
    end)
  end
end
