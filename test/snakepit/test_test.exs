defmodule Snakepit.TestTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.Family

  doctest Snakepit.Test

  test "what is left is named, the rest of its family too" do
    token = Family.token()

    error =
      assert_raise ExUnit.AssertionError, fn ->
        Snakepit.Test.assert_no_orphans(
          fn ->
            {:ok, _worker} = Worker.start_link(id: "left", cmd: sh(Family.script(token)))
            Family.await(token)
          end,
          timeout: 100
        )
      end

    for os_pid <- Family.members(token), do: assert(error.message =~ "#{os_pid} ")
    assert error.message =~ "sleep #{token} (worker left)"
    assert_raise ExUnit.AssertionError, fn -> Snakepit.Test.assert_no_orphans(timeout: 0) end
    # It was there before.
    assert Snakepit.Test.assert_no_orphans(fn -> :fine end) == :fine
  end

  test "nothing is left: fine; options are checked" do
    assert Snakepit.Test.assert_no_orphans() == :ok
    assert Snakepit.Test.assert_no_orphans(timeout: 0) == :ok
    assert_raise ArgumentError, fn -> Snakepit.Test.assert_no_orphans(timeuot: 0) end
  end

  test "a process that does not go is told of, one that goes is waited for" do
    {:ok, worker} = Worker.start_link(cmd: ["sleep", "600"])
    os_pid = Worker.os_pid!(worker)

    assert_raise ExUnit.AssertionError, ~r/#{os_pid}/, fn ->
      Snakepit.Test.assert_gone(os_pid, timeout: 50)
    end

    {:ok, process} = Snakepit.OSProcess.lookup(os_pid)
    Process.exit(worker, :kill)
    assert Snakepit.Test.assert_gone(process) == :ok
  end

  describe "check_orphans as a setup" do
    setup do: Snakepit.Test.check_orphans()

    test "lets the test's own workers end with it" do
      {:ok, _worker} = Worker.start_link(cmd: ["sleep", "600"])
    end
  end
end
