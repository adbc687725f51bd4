defmodule Snakepit.PartitionTest do
  # Several hosts, as network namespaces, that are cut off from each other.
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Hosts, Lives, Nodes, ProcScan}

  @moduletag skip: Hosts.missing?()
  @moduletag timeout: 300_000
  @patience_ms 60_000

  setup do
    path = Path.join(Beam.temporary_directory(), "lives")
    hosts = Hosts.start(3)
    nodes = Nodes.start(3, hosts: true)
    for node <- nodes, do: Nodes.singleton(node, "one", path)
    holder = eventually(fn -> Nodes.holder(nodes, "one") end, @patience_ms)
    {:ok, path: path, hosts: hosts, nodes: nodes, holder: holder}
  end

  defp await(path, count) do
    eventually(fn -> length(Lives.read(path)) > count end, @patience_ms)
    lives = Lives.read(path)
    assert Lives.faults(lives) == []
    List.last(lives)
  end

  defp alive?(%{os_pid: os_pid}), do: ProcScan.running?(os_pid)
  defp waits?(node), do: Beam.call(node.beam, Nodes, :info, ["one"]) == :waiting

  test "cut off from the other two, the holder's process ends before another begins, and stays ended",
       context do
    %{path: path, holder: holder, hosts: hosts} = context
    first = await(path, 0)
    Hosts.divide([[holder.number], hosts -- [holder.number]])
    second = await(path, 1)
    refute alive?(first)
    eventually(fn -> waits?(holder) end)
    Hosts.heal(hosts)
    # Everybody is connected again, and nothing changes by that.
    eventually(fn -> length(Beam.run(holder.beam, "Node.list()")) == 2 end, @patience_ms)
    assert alive?(second)
    assert waits?(holder)
    assert Lives.faults(Lives.read(path)) == []
  end

  test "with nobody connected there is none, and one again when two are", context do
    %{path: path, hosts: hosts, nodes: nodes} = context
    first = await(path, 0)
    Hosts.divide(for host <- hosts, do: [host])
    eventually(fn -> not alive?(first) end, @patience_ms)
    eventually(fn -> Enum.all?(nodes, &waits?/1) end, @patience_ms)
    assert length(Lives.read(path)) == 1
    [one, two | _] = hosts
    Hosts.heal([one, two])
    second = await(path, 1)
    assert alive?(second)
    Hosts.heal(hosts)
    assert Lives.faults(Lives.read(path)) == []
  end

  test "cuts in one direction", context do
    %{path: path, holder: holder, hosts: hosts} = context
    first = await(path, 0)
    # The holder hears the others, and they do not hear it.
    for other <- hosts -- [holder.number], do: Hosts.cut(holder.number, other)
    await(path, 1)
    refute alive?(first)
    Hosts.heal(hosts)
    eventually(fn -> length(Beam.run(holder.beam, "Node.list()")) == 2 end, @patience_ms)
    # The other direction.
    current = eventually(fn -> Nodes.holder(context.nodes, "one") end, @patience_ms)
    count = length(Lives.read(path))
    for other <- hosts -- [current.number], do: Hosts.cut(other, current.number)
    await(path, count)
    Hosts.heal(hosts)
    assert Lives.faults(Lives.read(path)) == []
  end
end
