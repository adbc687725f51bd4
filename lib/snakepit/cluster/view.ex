defmodule Snakepit.Cluster.View do
  @moduledoc false

  # Which nodes are visible, and what each of them answered last. Questions are asked by the callers themselves, so
  # one that takes long keeps nobody waiting.

  use GenServer

  alias Snakepit.ProcessLabel

  @scope Snakepit.Cluster
  @table __MODULE__
  # Nodes that were seen, and are not there any more.
  @most_lost 1_000

  def start_link(_config), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "The scope of `:pg`, as a child."
  def scope, do: %{id: @scope, start: {:pg, :start_link, [@scope]}}

  @doc "Returns the nodes that are visible and connected."
  def nodes do
    started!()
    for member <- :pg.get_members(@scope, :nodes), uniq: true, do: node(member)
  end

  @doc """
  Has each visible node call the function. With a `topic`, the answers are kept for when a node is gone.
  """
  def ask(topic, {module, function, arguments}, timeout) do
    nodes = nodes()
    results = :erpc.multicall(nodes, module, function, arguments, timeout)
    answers = for {node, {:ok, value}} <- Enum.zip(nodes, results), into: %{}, do: {node, value}
    if topic != nil, do: keep(topic, answers)
    gone = Enum.uniq(for(node <- nodes, not is_map_key(answers, node), do: node) ++ lost())
    answers = for {node, value} <- answers, into: %{}, do: {node, {:ok, value}}
    for node <- gone, into: answers, do: {node, {:unreachable, last(topic, node)}}
  end

  defp keep(topic, answers),
    do: :ets.insert(@table, for({node, value} <- answers, do: {{topic, node}, value}))

  defp lost, do: for([node] <- :ets.match(@table, {{:lost, :"$1"}, :_}), do: node)

  defp last(topic, node), do: %{since: value({:lost, node}), last: value({topic, node})}

  defp value(key) do
    case :ets.lookup(@table, key) do
      [{_key, value}] -> value
      [] -> nil
    end
  end

  defp started! do
    if :ets.whereis(@table) == :undefined do
      raise "no view of the cluster: add config :snakepit, cluster: [visible: true], and start Snakepit"
    end
  end

  @impl true
  def init([]) do
    ProcessLabel.set(__MODULE__)
    :ets.new(@table, [:named_table, :public, read_concurrency: true])
    # Where there is no distribution there is nobody to be heard of.
    if Node.alive?(), do: :net_kernel.monitor_nodes(true)
    :ok = :pg.join(@scope, :nodes, self())
    {:ok, []}
  end

  @impl true
  def handle_info({:nodeup, node}, state) do
    :ets.delete(@table, {:lost, node})
    {:noreply, state}
  end

  # One that has never answered is none of this.
  def handle_info({:nodedown, node}, state) do
    seen? = :ets.match(@table, {{:_, node}, :"$1"}) != []

    if seen? and length(lost()) < @most_lost,
      do: :ets.insert(@table, {{:lost, node}, DateTime.utc_now()}),
      else: :ets.match_delete(@table, {{:_, node}, :_})

    {:noreply, state}
  end

  def handle_info(_stray, state), do: {:noreply, state}
end
