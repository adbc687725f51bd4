defmodule Snakepit.Cluster.Pools do
  @moduledoc false

  # The pools of one name on several nodes: which of them a caller is to borrow from.

  alias Snakepit.Cluster.View
  alias Snakepit.Pool

  @ask_ms 1_000

  @doc "Returns the pool that has a free worker, this node's first, or else the one with the fewest callers for each worker."
  @spec choose(atom()) :: {atom(), node()}
  def choose(name) do
    case load(name) do
      {:free, _idle} -> {name, node()}
      _busy_or_none -> name |> loads() |> pick(name)
    end
  end

  defp loads(name) do
    for {node, {:ok, load}} <- View.ask(nil, {__MODULE__, :load, [name]}, @ask_ms),
        load != nil,
        do: {node, load}
  end

  # Nobody has it: this node's answers that.
  defp pick([], name), do: {name, node()}
  defp pick(loads, name), do: {name, loads |> Enum.min_by(&rank/1) |> elem(0)}

  @doc "Returns an order: the least is chosen."
  def rank({node, {:free, idle}}), do: {0, -idle, node != node(), node}
  def rank({node, {:busy, callers}}), do: {1, callers, node != node(), node}

  @doc "Returns how busy this node's pool is; `nil` if there is none."
  def load(name) do
    if Process.whereis(name) do
      info = Pool.info(name)

      if info.idle > info.queued,
        do: {:free, info.idle - info.queued},
        else: {:busy, (info.busy + info.queued) / max(info.size, 1)}
    end
  catch
    :exit, _ended -> nil
  end
end
