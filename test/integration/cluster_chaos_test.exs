defmodule Snakepit.ClusterChaosTest do
  # Many singletons on five nodes, and random faults. `script/chaos --cluster` takes ten minutes and fifty of them; here it
  # is short. The judge reads what each process has written of itself.
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Hosts, Lives, Nodes}

  @moduletag timeout: :infinity
  @setting "SNAKEPIT_CLUSTER_"
  @guardian "try do Snakepit.Guardian.os_pid() catch :exit, _reason -> nil end"
  # With which everything has to run again after the last fault, whatever else the machine does.
  @patience_ms 120_000

  defp setting(name, default),
    do: String.to_integer(System.get_env(@setting <> name, "#{default}"))

  test "no two at a time, whatever happens" do
    seed = setting("SEED", :rand.uniform(1_000_000))
    :rand.seed(:exsss, {seed, 0, 0})
    count = setting("SINGLETONS", 5)
    hosts = if Hosts.missing?(), do: nil, else: Hosts.start(5)
    say("seed #{seed}, #{count} singletons, #{(hosts && "network namespaces") || "one host"}")
    directory = Beam.temporary_directory()
    ids = for number <- 1..count, do: "s#{number}"
    path = fn id -> Path.join(directory, id) end
    nodes = Nodes.start(5, if(hosts, do: [hosts: true], else: []))
    world = %{nodes: nodes, hosts: hosts, ids: ids, path: path}
    for node <- nodes, do: begin(world, node)
    await_all(world)
    until = now() + 1_000 * setting("SECONDS", 20)
    world = rounds(world, until, 1)
    lives = Map.new(world.ids, &{&1, Lives.read(path.(&1))})

    assert %{} ==
             for(
               {id, lives} <- lives,
               faults = Lives.faults(lives),
               faults != [],
               into: %{},
               do: {id, faults}
             )

    say(
      "#{lives |> Map.values() |> List.flatten() |> length()} processes, never two of one at a time"
    )
  end

  defp begin(world, node) do
    for id <- world.ids, do: Nodes.singleton(node, id, world.path.(id))
    node
  end

  defp rounds(world, until, round) do
    if now() >= until do
      world
    else
      kinds =
        [:node, :guardian, :both, :stop] ++
          if(world.hosts, do: [:divide, :divide, :cut], else: [])

      kind = Enum.random(kinds)
      world = fault(kind, world)
      took = await_all(world)
      say("#{round}: #{kind}; all run #{took} ms after the end of it")
      rounds(world, until, round + 1)
    end
  end

  # Each ends with five nodes that hear each other.
  defp fault(:node, world), do: replace(world, &Beam.kill(&1.beam))
  defp fault(:both, world), do: replace(world, &Beam.kill_with_guardian(&1.beam))

  defp fault(:guardian, world) do
    node = Enum.random(world.nodes)
    os_pid = Beam.run(node.beam, @guardian)
    {_, 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
    # There is another one.
    eventually(fn -> Beam.run(node.beam, @guardian) not in [nil, os_pid] end)
    world
  end

  defp fault(:stop, world) do
    node = Enum.random(world.nodes)
    Beam.kill(node.beam, "STOP")
    pause(6_000)
    Beam.kill(node.beam, "CONT")
    world
  end

  defp fault(:divide, world) do
    groups = world.hosts |> Enum.group_by(fn _host -> :rand.uniform(3) end) |> Map.values()
    Hosts.divide(groups)
    pause(8_000)
    Hosts.heal(world.hosts)
    world
  end

  defp fault(:cut, world) do
    for from <- world.hosts,
        to <- world.hosts,
        from != to,
        :rand.uniform(4) == 1,
        do: Hosts.cut(from, to)

    pause(8_000)
    Hosts.heal(world.hosts)
    world
  end

  defp replace(world, kill) do
    node = Enum.random(world.nodes)
    kill.(node)
    Beam.await_end(node.beam)
    pause(3_000)
    again = begin(world, Nodes.restart(node))
    %{world | nodes: [again | world.nodes -- [node]]}
  end

  # Each has a process that writes. Returns how long that took.
  defp await_all(world) do
    begun = now()
    sizes = Map.new(world.ids, &{&1, size(world.path.(&1))})

    eventually(
      fn -> Enum.all?(sizes, fn {id, size} -> size(world.path.(id)) > size end) end,
      @patience_ms
    )

    now() - begun
  end

  defp size(path) do
    case File.stat(path) do
      {:ok, %{size: size}} -> size
      {:error, :enoent} -> 0
    end
  end

  defp pause(most_ms) do
    receive do
    after
      500 + :rand.uniform(most_ms) -> :ok
    end
  end

  defp now, do: System.monotonic_time(:millisecond)

  # For those who wait for ten minutes.
  defp say(text), do: if(System.get_env(@setting <> "SECONDS"), do: IO.puts("  " <> text))
end
