defmodule Snakepit.ClusterGuideTest do
  use ExUnit.Case

  import Snakepit.Test.Eventually
  import Snakepit.Test.Snippets

  alias Snakepit.Test.{Beam, Nodes}

  @root Path.expand("..", __DIR__)
  @moduletag timeout: 240_000

  test "the snippets are taken from examples, and the configuration is valid" do
    assert_taken_from_files(page("guides/cluster.md"))
    config = Config.Reader.read!(Path.join(@root, "examples/cluster/runtime.exs"))

    assert %{lease: 5_000, members: [_, _, _]} =
             Snakepit.Config.validate!(config[:snakepit]).cluster
  end

  test "the example runs on one node of three" do
    nodes = Nodes.start(3)
    path = Path.join(@root, "examples/cluster/singleton.exs")
    for node <- nodes, do: Beam.run(node.beam, "Code.eval_file(#{inspect(path)}) && :ok")
    info = fn node -> Beam.run(node.beam, "Snakepit.Cluster.Singleton.info(Scheduler)") end

    eventually(
      fn ->
        match?([{:running, _} | _], nodes |> Enum.map(info) |> Enum.sort_by(&(&1 == :waiting)))
      end,
      60_000
    )

    assert 2 == Enum.count(nodes, &(info.(&1) == :waiting))
  end
end
