defmodule Snakepit.OSProcessTest do
  use ExUnit.Case, async: true

  import Bitwise, only: [<<<: 2]

  alias Snakepit.{Error, OSProcess}
  alias Snakepit.Test.Program

  doctest OSProcess

  test "a process that has ended is not its successor" do
    os_pid = Program.sleeper()
    {:ok, process} = OSProcess.lookup(os_pid)
    assert OSProcess.alive?(process)
    assert :ok = Snakepit.ProcessKiller.kill_with_escalation(process)
    refute OSProcess.alive?(process)
    assert {:error, %Error{reason: :esrch, os_pid: ^os_pid}} = OSProcess.info(process)
  end

  test "an identity is understood by another BEAM" do
    {:ok, process} = OSProcess.lookup(Program.sleeper())
    ebin = Application.app_dir(:snakepit, "ebin")

    code = """
    process = System.argv() |> hd() |> Base.decode64!() |> :erlang.binary_to_term()
    IO.inspect(Snakepit.OSProcess.alive?(process))
    """

    argument = process |> :erlang.term_to_binary() |> Base.encode64()
    ask = fn -> System.cmd("elixir", ["-pa", ebin, "-e", code, argument]) end

    assert {"true\n", 0} = ask.()
    :ok = Snakepit.ProcessKiller.kill_with_escalation(process)
    assert {"false\n", 0} = ask.()
  end

  test "arguments are bytes: invalid UTF-8, empty ones, 100 KB" do
    long = String.duplicate("x", 100_000)
    arguments = ["-c", "read _", "name", <<255, 254>>, "", " a  b ", long]
    {:ok, process} = OSProcess.lookup(Program.start("sh", arguments))
    {:ok, info} = OSProcess.info(process)
    assert [_sh | ^arguments] = info.arguments
  end

  test "numbers that are no pids are refused, and what is no number is an error of the caller" do
    for number <- [0, -1, -4711, 1 <<< 31, 1 <<< 64, -(1 <<< 64)] do
      assert {:error, %Error{reason: :refused}} = OSProcess.lookup(number)
    end

    for other <- [:self, 1.0, "1", nil, self()] do
      assert_raise ArgumentError, ~r/expected an OS pid, got: /, fn -> OSProcess.lookup(other) end
    end
  end

  test "a damaged identity names nobody" do
    {:ok, process} = OSProcess.lookup(Program.sleeper())
    <<first, rest::binary>> = process.identity

    for identity <- ["", <<0>>, rest, <<first + 1, rest::binary>>, process.identity <> <<0>>] do
      damaged = %{process | identity: identity}
      refute OSProcess.alive?(damaged)
      assert {:error, %Error{reason: :not_an_identity}} = OSProcess.info(damaged)

      assert {:error, %Error{reason: :not_an_identity}} =
               Snakepit.ProcessKiller.kill_process(damaged, :sigkill)
    end

    assert OSProcess.alive?(process)
  end
end
