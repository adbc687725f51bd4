defmodule Snakepit.SingletonTest do
  # On several BEAMs of this host. `partition_test.exs` has several hosts.
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Lives, Nodes, ProcScan}

  @moduletag timeout: 240_000
  @patience_ms 60_000

  setup do
    path = Path.join(Beam.temporary_directory(), "lives")
    {:ok, path: path}
  end

  defp started(path, options \\ []) do
    nodes = Nodes.start(3, options)
    for node <- nodes, do: Nodes.singleton(node, "one", path)
    {nodes, holder(nodes)}
  end

  defp holder(nodes), do: eventually(fn -> Nodes.holder(nodes, "one") end, @patience_ms)

  defp next(path, count) do
    eventually(fn -> length(Lives.read(path)) > count end, @patience_ms)
    lives = Lives.read(path)
    assert Lives.faults(lives) == []
    List.last(lives)
  end

  # It wrote a moment ago, and its process is there.
  defp alive?(%{os_pid: os_pid}), do: ProcScan.running?(os_pid)

  test "the process is on one node, and after an orderly stop on another", %{path: path} do
    {nodes, holder} = started(path)
    first = next(path, 0)
    Nodes.stop_singleton(holder, "one")
    second = next(path, 1)
    refute alive?(first)
    assert alive?(second)
    assert second.token > first.token
    other = holder(nodes -- [holder])
    assert other.name != holder.name
  end

  test "kill -9 of the node, of its guardian, and of both", %{path: path} do
    {nodes, holder} = started(path)
    first = next(path, 0)
    Beam.kill(holder.beam)
    second = next(path, 1)
    refute alive?(first)

    # It comes back, as a member that grants again after a while.
    left = nodes -- [holder]
    again = Nodes.restart(holder)
    Nodes.singleton(again, "one", path)
    nodes = [again | left]
    holder = holder(nodes)
    guardian = Beam.run(holder.beam, "Snakepit.Guardian.os_pid()")
    {_, 0} = System.cmd("kill", ["-KILL", "#{guardian}"])
    _third = next(path, 2)
    refute alive?(second)

    holder = holder(nodes)
    count = length(Lives.read(path))
    Beam.kill_with_guardian(holder.beam)
    next(path, count)
  end

  test "a BEAM that is stopped for longer than the lease has no process when it wakes, and knows",
       %{
         path: path
       } do
    {nodes, holder} = started(path)
    first = next(path, 0)
    Beam.kill(holder.beam, "STOP")
    second = next(path, 1)
    refute alive?(first)
    assert ProcScan.stat(holder.beam.os_pid).state == "T"
    Beam.kill(holder.beam, "CONT")
    eventually(fn -> Beam.call(holder.beam, Nodes, :info, ["one"]) == :waiting end, @patience_ms)
    assert alive?(second)
    assert holder(nodes).name != holder.name
    assert Lives.faults(Lives.read(path)) == []
  end

  test "a program that ends by itself is started again, and tokens grow", %{path: path} do
    {_nodes, _holder} = started(path)
    first = next(path, 0)
    {_, 0} = System.cmd("kill", ["-KILL", "#{first.os_pid}"])
    second = next(path, 1)
    {_, 0} = System.cmd("kill", ["-KILL", "#{second.os_pid}"])
    next(path, 2)
  end

  test "tokens grow although every node was restarted", %{path: path} do
    {nodes, _holder} = started(path)
    next(path, 0)
    for node <- nodes, do: Beam.kill(node.beam)
    for node <- nodes, do: Beam.await_end(node.beam)
    nodes = Enum.map(nodes, &Nodes.restart/1)
    for node <- nodes, do: Nodes.singleton(node, "one", path)
    next(path, 1)
  end

  test "a node with another cookie gets nothing", %{path: path} do
    {[one | _] = nodes, _holder} = started(path)
    next(path, 0)
    stranger = Nodes.stranger(one, 9, "another")
    Nodes.singleton(stranger, "two", path <> "2")

    for node <- nodes do
      refute Beam.run(stranger.beam, "Node.connect(#{inspect(node.name)})")
    end

    assert Beam.call(stranger.beam, Nodes, :info, ["two"]) == :waiting
    refute File.exists?(path <> "2")
  end

  test "another version of the protocol is refused with a sentence, and nothing crashes", %{
    path: path
  } do
    {[one, two | _], _holder} = started(path)
    member = {Snakepit.Cluster.Member, two.name}

    answer =
      Beam.run(one.beam, """
      (fn ->
        send(#{inspect(member)}, {Snakepit.Cluster.Wire, 999, {:acquire, "x", "of a later version"}, self()})
        send(#{inspect(member)}, {Snakepit.Cluster.Wire, 1, :garbage, self()})
        send(#{inspect(member)}, :garbage)
        receive do: (answer -> answer), after: (20_000 -> :none)
      end).()
      """)

    assert {Snakepit.Cluster.Wire, 1, {:refused, _node, nil, {:version, 1}, 0}} = answer
    first = next(path, 0)
    assert alive?(first)
  end
end
