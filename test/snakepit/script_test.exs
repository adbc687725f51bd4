defmodule Snakepit.ScriptTest do
  use Snakepit.Test.OwnDirectory, async: false

  alias Snakepit.Test.{ProcScan, Workers}

  defp worker_then(fun) do
    fn ->
      {:ok, child} = Workers.start("w", ["sleep", "600"])
      send(self(), {:started, child.os_pid})
      fun.()
    end
  end

  defp assert_gone do
    assert_receive {:started, os_pid}
    refute ProcScan.running?(os_pid)
  end

  test "gives what the function gives, or raises what it raises, with nothing left" do
    assert Snakepit.run_as_script(worker_then(fn -> 42 end)) == 42
    assert_gone()

    assert_raise RuntimeError, "oops", fn ->
      Snakepit.run_as_script(worker_then(fn -> raise("oops") end))
    end

    assert_gone()
    assert catch_throw(Snakepit.run_as_script(worker_then(fn -> throw(:oops) end))) == :oops
    assert_gone()

    assert catch_exit(
             Snakepit.run_as_script(worker_then(fn -> exit(:oops) end), shutdown_timeout: 100)
           ) == :oops

    assert_gone()
    # It was started before, so it goes on.
    assert Snakepit.RunState.current() == :running
  end

  test "has its time, and no more" do
    assert Snakepit.run_as_script(fn -> 42 end, timeout: 5_000) == 42

    assert catch_exit(Snakepit.run_as_script(fn -> Process.sleep(:infinity) end, timeout: 20)) ==
             :timeout

    assert catch_exit(
             Snakepit.run_as_script(fn -> Process.exit(self(), :kill) end, timeout: 5_000)
           ) == :killed
  end

  test "starts and stops what did not run" do
    :ok = Application.stop(:snakepit)
    assert Snakepit.run_as_script(fn -> Snakepit.RunState.current() end) == :running
    assert Snakepit.RunState.current() == nil
  end

  test "takes a function, and the options that there are" do
    assert_raise ArgumentError, ~r/without arguments/, fn ->
      Snakepit.run_as_script(fn _ -> 1 end)
    end

    assert_raise ArgumentError, ~r/unknown option :nonsense/, fn ->
      Snakepit.run_as_script(fn -> 1 end, nonsense: 1)
    end

    for {options, text} <- [
          {[timeout: -1],
           "expected :timeout to be a number of milliseconds from 0 to \\d+ or :infinity, got: -1"},
          {[shutdown_timeout: :infinity],
           "expected :shutdown_timeout to be a number of milliseconds"},
          {[halt: 1], "expected :halt to be true or false, got: 1"}
        ] do
      assert_raise ArgumentError, ~r/#{text}/, fn ->
        Snakepit.run_as_script(fn -> 1 end, options)
      end
    end
  end
end
