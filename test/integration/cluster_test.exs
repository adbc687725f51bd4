defmodule Snakepit.ClusterTest do
  # What is seen of other nodes, on several BEAMs of this host.
  use ExUnit.Case

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Nodes, ProcScan}

  @moduletag timeout: 240_000

  setup do
    [one | _] = nodes = Nodes.start(3, visible: true)
    eventually(fn -> length(Beam.run(one.beam, "Snakepit.Cluster.nodes()")) == 3 end)
    {:ok, nodes: nodes, one: one}
  end

  # It lives on when the request that has started it is answered.
  defp worker(node, id) do
    Beam.run(node.beam, """
    (fn ->
      {:ok, worker} = Snakepit.Worker.start_link(id: #{inspect(id)}, cmd: ["sleep", "3600"])
      Process.unlink(worker)
      Snakepit.Worker.os_pid!(worker)
    end).()
    """)
  end

  defp ask(node, question), do: Beam.run(node.beam, "Snakepit.Cluster." <> question)

  test "workers and runs of all nodes, and of one that is gone what was last seen", context do
    %{nodes: [one, two, three] = nodes} = context
    os_pids = for node <- nodes, into: %{}, do: {node.name, worker(node, "w#{node.number}")}

    for node <- nodes do
      answers = ask(node, "workers()")
      assert map_size(answers) == 3
      for {name, {:ok, [worker]}} <- answers, do: assert(worker.os_pid == os_pids[name])
    end

    runs = ask(one, "runs()")

    assert for({_name, {:ok, %{state: :running, run_id: id}}} <- runs, uniq: true, do: id)
           |> length() == 3

    assert %{} = history = ask(one, "history()")
    assert map_size(history) == 3
    assert [{name, {:ok, %{id: "w2"}}}] = Map.to_list(ask(one, "info(\"w2\")"))
    assert name == two.name

    Beam.kill(three.beam)

    # It may be asked once more before anybody has noticed.
    gone =
      eventually(fn ->
        with {:unreachable, %{since: %DateTime{}} = gone} <- ask(one, "workers()")[three.name],
             do: gone,
             else: (_not_noticed -> nil)
      end)

    assert [%{id: "w3"}] = gone.last

    Nodes.restart(three)
    eventually(fn -> match?({:ok, []}, ask(one, "workers()")[three.name]) end, 60_000)
  end

  test "a node that hangs is shown as unreachable, in the time that was given", context do
    %{nodes: [one, two, _three]} = context
    os_pid = worker(two, "w")
    assert {:ok, [_]} = ask(one, "workers()")[two.name]
    Beam.kill(two.beam, "STOP")
    assert {:unreachable, %{last: [%{id: "w"}]}} = ask(one, "workers(500)")[two.name]
    # Nothing of it is ended on another node's word.
    assert ProcScan.running?(os_pid)
    Beam.kill(two.beam, "CONT")
    eventually(fn -> match?({:ok, [_]}, ask(one, "workers()")[two.name]) end, 60_000)
  end

  test "a worker is stopped from another node", context do
    %{nodes: [one, two, three]} = context
    os_pid = worker(two, "w")
    assert ask(one, "stop(#{inspect(two.name)}, \"w\")") == :ok
    refute ProcScan.running?(os_pid)
    assert {:error, %{reason: :not_found}} = ask(one, "stop(#{inspect(two.name)}, \"w\")")
    Beam.kill(three.beam)
    Beam.await_end(three.beam)
    assert {:error, error} = ask(one, "stop(#{inspect(three.name)}, \"w\")")
    assert error.reason == :unreachable
    assert Exception.message(error) =~ "does not answer"
  end

  test "workers of pools are borrowed from this node first, then from others, and their loss is an error",
       context do
    %{nodes: [one, two, _three]} = context

    for node <- [one, two] do
      Beam.run(node.beam, """
      (fn ->
        {:ok, pool} = Snakepit.Pool.start_link(name: Lent, size: 1, worker: [cmd: ["cat"], stdio: :pipe, packet: :line])
        Process.unlink(pool)
        Snakepit.Pool.await_ready(Lent)
      end).()
      """)
    end

    where =
      "Snakepit.Pool.with_worker({:cluster, Lent}, fn worker -> {node(worker), Snakepit.Worker.request(worker, \"a\\n\")} end)"

    assert Beam.run(one.beam, where) == {one.name, {:ok, "a\n"}}
    inner = "Snakepit.Pool.with_worker(Lent, fn _own -> #{where} end)"
    assert Beam.run(one.beam, inner) == {two.name, {:ok, "a\n"}}

    lost = """
    Snakepit.Pool.with_worker(Lent, fn _own ->
      Snakepit.Pool.with_worker({:cluster, Lent}, fn worker ->
        Node.monitor(node(worker), true)
        :erpc.cast(node(worker), :erlang, :halt, [])
        receive do: ({:nodedown, _gone} -> :ok)
        Snakepit.Worker.request(worker, "a\\n")
      end)
    end)
    """

    assert {:error, error} = Beam.run(one.beam, lost)
    assert error.reason in [:worker_down, :pool_down]
    # Nowhere.
    assert {:error, %{reason: :pool_down}} =
             Beam.run(one.beam, "Snakepit.Pool.with_worker({:cluster, Nowhere}, fn _ -> :ok end)")
  end
end
