defmodule Snakepit.Guardian.OutputTest do
  use Snakepit.Test.GuardianCase

  alias Snakepit.Guardian

  test "the tail has both streams in order, and only the end" do
    assert output(["sh", "-c", "echo one; echo two >&2; echo three"]) == "one\ntwo\nthree\n"
    {_exit, tail} = shell("seq 1 100000") |> await_exit()
    assert byte_size(tail) == 65_536
    assert String.ends_with?(tail, "99999\n100000\n")
  end

  test "the tail can be asked for while the process runs" do
    child = shell("echo so far; sleep 60")
    assert eventually(fn -> Guardian.output_tail(child) == {:ok, "so far\n"} end)
  end

  test "null keeps nothing, a file gets all of it" do
    assert output(["echo", "x"], stdio: :null) == ""
    path = Path.join(Snakepit.Test.Beam.temporary_directory(), "output")
    assert output(["sh", "-c", "echo one; echo two >&2"], stdio: {:file, path}) == ""
    assert output(["echo", "three"], stdio: {:file, path}) == ""
    assert File.read!(path) == "one\ntwo\nthree\n"
  end

  test "a connection carries input and output, errors go to the tail" do
    {:ok, socket, token} = Guardian.connect(packet: :line)

    child = shell("while read line; do echo got $line; done; echo bye >&2", stdio: {:pipe, token})

    for word <- ["one", "two"] do
      :ok = :gen_tcp.send(socket, word <> "\n")
      assert {:ok, "got #{word}\n"} == :gen_tcp.recv(socket, 0, 5_000)
    end

    :ok = :gen_tcp.shutdown(socket, :write)
    assert {%{status: 0}, "bye\n"} = await_exit(child)
    assert {:error, :closed} = :gen_tcp.recv(socket, 0, 5_000)
  end

  test "the lifeline is descriptor 3" do
    {:ok, socket, token} = Guardian.connect(packet: :line)
    child = shell("read word <&3; echo pong $word >&3", lifeline: token)
    :ok = :gen_tcp.send(socket, "ping\n")
    assert {:ok, "pong ping\n"} = :gen_tcp.recv(socket, 0, 5_000)
    assert {%{status: 0}, ""} = await_exit(child)
  end
end
