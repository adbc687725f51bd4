defmodule Snakepit.Bench.Cluster do
  @moduledoc """
  Three nodes with leases of five seconds: how long there is no process after `kill -9` of the holder's node and after an
  orderly stop, and what leases cost a node of processor time.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench
  import Snakepit.Bench.Nodes, only: [await: 1, with_nodes: 2]

  alias Snakepit.Bench.{SecondBeam, Turns, Usage}

  @lease 5_000
  @look_ms 10_000
  @many 1_000

  @impl true
  def run, do: with_nodes(@lease, &measure/2)

  defp measure(nodes, start) do
    with_directory(fn directory ->
      path = Path.join(directory, "starts")
      idle = cpu(nodes, "no lease")
      for {_name, beam} <- nodes, do: singleton(beam, path)
      await(fn -> starts(path) == 1 end)
      one = cpu(nodes, "one lease")
      stops = for round <- 1..7, do: orderly(nodes, path, round)
      {nodes, kills} = Enum.reduce(1..5, {nodes, []}, &killed(&1, &2, path, start))
      many = many(nodes)
      for {_name, beam} <- nodes, do: SecondBeam.stop(beam.port)
      rows(idle, one, many, stops, kills)
    end)
  end

  defp rows(idle, one, many, stops, kills) do
    [
      row(
        name: "orderly stop until the process runs elsewhere",
        rounds: stops,
        unit: "ms",
        target: {:value, 500}
      ),
      row(
        name: "kill -9 of the node until the process runs elsewhere, lease #{@lease} ms",
        rounds: kills,
        unit: "ms",
        target: {:value, @lease + 1_000}
      ),
      row(
        name: "one lease, processor time of a node, more than without",
        value: max(one - idle, 0.0),
        unit: "% of a core",
        target: {:value, 0.05}
      ),
      row(
        name: "#{@many} leases, processor time of a node, more than without",
        value: max(many - idle, 0.0),
        unit: "% of a core",
        target: {:value, 5}
      )
    ]
  end

  defp singleton(beam, path) do
    script = "echo >> #{path}; exec sleep 3600"

    SecondBeam.run(beam, """
    (fn ->
      children = [{Snakepit.Cluster.Singleton, id: "bench", name: Bench, cmd: ["sh", "-c", #{inspect(script)}]}]
      {:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one, name: BenchSupervisor)
      Process.unlink(supervisor)
      :ok
    end).()
    """)
  end

  defp starts(path) do
    case File.stat(path) do
      {:ok, %{size: size}} -> size
      {:error, :enoent} -> 0
    end
  end

  defp holder(nodes) do
    await(fn ->
      Enum.find(nodes, fn {_name, beam} ->
        SecondBeam.run(beam, "Snakepit.Cluster.Singleton.info(Bench) != :waiting")
      end)
    end)
  end

  defp orderly(nodes, path, round) do
    progress("orderly stop #{round}")
    {_name, beam} = holder(nodes)
    count = starts(path)
    begun = now()
    true = SecondBeam.run(beam, "Supervisor.stop(BenchSupervisor) == :ok")
    await(fn -> starts(path) > count end)
    took = now() - begun
    singleton(beam, path)
    took
  end

  defp killed(round, {nodes, took}, path, start) do
    progress("kill -9 #{round}")
    {name, beam} = holder(nodes)
    count = starts(path)
    begun = now()
    {_, 0} = System.cmd("kill", ["-KILL", "#{beam.os_pid}"])
    await(fn -> starts(path) > count end)
    took = [now() - begun | took]
    again = start.(name)
    singleton(again, path)
    # As a member it grants nothing for one lease.
    Process.sleep(@lease)
    {%{nodes | name => again}, took}
  end

  # Leases by themselves, without a process for each.
  defp many(nodes) do
    progress("#{@many} leases")

    for {_name, beam} <- nodes do
      SecondBeam.run(beam, """
      (fn ->
        owner = spawn(fn -> Process.sleep(:infinity) end)
        spawn(fn ->
          for number <- 1..#{@many}, do: {:ok, _} = Snakepit.Cluster.Lease.Majority.start_link(id: "m\#{number}", owner: owner)
          Process.sleep(:infinity)
        end)
        :ok
      end).()
      """)
    end

    Process.sleep(3 * @lease)
    cpu(nodes, "#{@many} leases")
  end

  # The mean of the nodes, each with its member and its share of the holders.
  defp cpu(nodes, label) do
    os_pids = for {_name, beam} <- nodes, do: beam.os_pid

    [label: label, rounds: 3, within_ms: 60_000]
    |> Turns.repeat(fn _round ->
      before = Enum.map(os_pids, &Usage.cpu_ns/1)
      {us, :ok} = once(fn -> Process.sleep(@look_ms) end)
      used = Enum.zip_with(Enum.map(os_pids, &Usage.cpu_ns/1), before, &(&1 - &2))
      Enum.sum(used) / length(used) / (us * 1000) * 100
    end)
    |> percentile(50)
  end

  defp now, do: System.monotonic_time(:millisecond)
end
