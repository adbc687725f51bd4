defmodule Snakepit.ClusterDemoTest do
  # What `script/demo-cluster` shows: three nodes, one process, and what becomes of it.
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Hosts, Lives, Nodes}

  @moduletag timeout: 300_000
  @patience_ms 60_000

  test "a timeline in which there is always at most one" do
    hosts = if Hosts.missing?(), do: nil, else: Hosts.start(3)
    path = Path.join(Beam.temporary_directory(), "lives")
    nodes = Nodes.start(3, if(hosts, do: [hosts: true], else: []))
    {:ok, begun} = Snakepit.Native.clock_read()
    for node <- nodes, do: Nodes.singleton(node, "scheduler", path)
    show(begun, "three nodes, and on each {Snakepit.Cluster.Singleton, id: \"scheduler\", ...}")
    await(begun, path, nodes, 0)

    one = holder(nodes)
    show(begun, "kill -9 #{one.beam.os_pid}, the BEAM of #{one.name}")
    Beam.kill(one.beam)
    await(begun, path, nodes -- [one], 1)
    again = Nodes.restart(one)
    Nodes.singleton(again, "scheduler", path)
    nodes = [again | nodes -- [one]]
    show(begun, "#{one.name} is back")

    two = holder(nodes)
    cut_off(begun, hosts, two)
    await(begun, path, nodes -- [two], 2)
    heal(begun, hosts, two)

    three = holder(nodes -- [two])
    show(begun, "an orderly stop on #{three.name}")
    Nodes.stop_singleton(three, "scheduler")
    await(begun, path, nodes -- [three], 3)
    timeline(begun, path)
    assert Lives.faults(Lives.read(path)) == []
  end

  defp holder(nodes), do: eventually(fn -> Nodes.holder(nodes, "scheduler") end, @patience_ms)

  defp await(begun, path, nodes, count) do
    eventually(fn -> length(Lives.read(path)) > count end, @patience_ms)
    node = holder(nodes)
    %{os_pid: os_pid, token: token} = List.last(Lives.read(path))
    show(begun, "  process #{os_pid} runs on #{node.name}, with token #{token}")
  end

  defp cut_off(begun, nil, node) do
    show(begun, "kill -STOP #{node.beam.os_pid}, the BEAM of #{node.name}: it hangs")
    Beam.kill(node.beam, "STOP")
  end

  defp cut_off(begun, hosts, node) do
    show(begun, "#{node.name} is cut off from the others")
    Hosts.divide([[node.number], hosts -- [node.number]])
  end

  defp heal(begun, nil, node) do
    show(begun, "kill -CONT #{node.beam.os_pid}")
    Beam.kill(node.beam, "CONT")
  end

  defp heal(begun, hosts, node) do
    show(begun, "#{node.name} is connected again")
    Hosts.heal(hosts)
    eventually(fn -> length(Beam.run(node.beam, "Node.list()")) == 2 end, @patience_ms)
  end

  defp timeline(begun, path) do
    say("\n  what each process has written of itself, in milliseconds:\n")
    lives = Lives.read(path)

    for {life, gap} <-
          Enum.zip(lives, ["" | Enum.map(Lives.gaps(lives), &"#{&1} ms after the last")]) do
      first = String.pad_leading("#{life.first - begun}", 7)
      last = String.pad_leading("#{life.last - begun}", 7)
      say("  #{first} to #{last}  process #{life.os_pid}, token #{life.token}  #{gap}")
    end

    say("\n  two at a time: #{length(Lives.faults(lives))}")
  end

  defp show(begun, text) do
    {:ok, now} = Snakepit.Native.clock_read()
    say("#{String.pad_leading("#{now - begun}", 7)} ms  #{text}")
  end

  defp say(text), do: if(System.get_env("SNAKEPIT_DEMO"), do: IO.puts(text))
end
