defmodule Snakepit.OncePerPartitionTest do
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Cluster.OncePerPartition
  alias Snakepit.Test.{Beam, Lives, Nodes, ProcScan}

  @moduletag timeout: 240_000

  test "once among connected nodes, one for each part, and once again" do
    directory = Beam.temporary_directory()
    path = fn node -> Path.join(directory, "#{node.number}") end
    [_, _, _] = nodes = Nodes.start(3)
    {pair, _third} = Enum.split(nodes, 2)
    [one, two] = pair
    true = Beam.run(one.beam, "Node.connect(#{inspect(two.name)})")

    for node <- pair, do: :ok = Beam.run(node.beam, ":global.sync()")
    for node <- pair, do: Nodes.singleton(node, "pair", path.(node), module: OncePerPartition)

    running = fn -> Enum.filter(pair, &(Lives.read(path.(&1)) != [] and alive?(path.(&1)))) end
    # Until `:global` has heard of the connection, each is a part of its own.
    [first] = eventually(fn -> with [_one] = found <- running.(), do: found, else: (_ -> nil) end)
    [second] = pair -- [first]
    # There is no token to be taken for one.
    assert [%{token: 0}] = Lives.read(path.(first))

    # The end of a node is noticed by the other one at once.
    Beam.kill(first.beam)
    eventually(fn -> running.() == [second] end, 60_000)
  end

  defp alive?(path), do: ProcScan.running?(List.last(Lives.read(path)).os_pid)
end
