defmodule Snakepit.Cluster do
  @moduledoc """
  What runs on all nodes of a cluster, seen from one of them.

      # config/runtime.exs, on each node
      config :snakepit, cluster: [visible: true]

  The nodes are connected by Erlang distribution, by you or `libcluster` or, if they are `members`, by Snakepit. Those that
  are visible find each other by `:pg`. Without `visible: true` no process of this runs, and no message is sent.

  Each function asks all nodes at once, and answers within its timeout. It returns a map with an entry for each node:

    * `{:ok, answer}`
    * `{:unreachable, %{since: DateTime.t() | nil, last: answer | nil}}` for one that was there and is not any more, or
      did not answer in time: since when it has been gone, as far as that is known, and what was last seen from here

  A node that cannot be reached is not dead, and nothing of it is ended from elsewhere. Each node ends its own processes.

  Of what may exist once, see `Snakepit.Cluster.Singleton`. `Snakepit.Pool.with_worker/3` takes a pool
  `{:cluster, name}`, and then lends a worker of any node.
  """

  alias Snakepit.{Error, RunState, Worker}
  alias Snakepit.Cluster.View
  alias Snakepit.Pool.ProcessRegistry

  @timeout_ms 5_000

  @typedoc "What the nodes have answered."
  @type answers(answer) :: %{
          node() =>
            {:ok, answer} | {:unreachable, %{since: DateTime.t() | nil, last: answer | nil}}
        }

  @doc "Returns the nodes that are visible and connected, this one included."
  @spec nodes() :: [node()]
  defdelegate nodes, to: View

  @doc "Returns the workers of each node, as `Snakepit.workers/0` does for this one."
  @spec workers(timeout()) :: answers([Worker.Summary.t()])
  def workers(timeout \\ @timeout_ms), do: View.ask(:workers, {Snakepit, :workers, []}, timeout)

  @doc "Returns the id and the state of each node's run."
  @spec runs(timeout()) :: answers(%{run_id: Snakepit.RunID.t(), state: RunState.t()})
  def runs(timeout \\ @timeout_ms), do: View.ask(:runs, {__MODULE__, :own_run, []}, timeout)

  @doc false
  def own_run, do: %{run_id: Snakepit.run_id(), state: RunState.current()}

  @doc "Returns the last runs of each node that have ended, as `Snakepit.RunState.history/1` does for this one."
  @spec history(non_neg_integer(), timeout()) :: answers([map()])
  def history(limit \\ 10, timeout \\ @timeout_ms),
    do: View.ask(:history, {RunState, :history, [limit]}, timeout)

  @doc "Returns what the nodes know of a worker, by its id: those that have no such worker are left out."
  @spec info(String.t(), timeout()) :: answers(Worker.Info.t())
  def info(id, timeout \\ @timeout_ms) when is_binary(id) do
    for {node, answer} <- View.ask(nil, {__MODULE__, :own_info, [id]}, timeout),
        answer != {:ok, nil},
        into: %{},
        do: {node, answer}
  end

  @doc false
  def own_info(id) do
    with {:ok, %{owner: owner}} <- ProcessRegistry.get_worker_info(id),
         {:ok, info} <- Worker.info(owner),
         do: info,
         else: (_none -> nil)
  end

  @doc "Stops a worker of a node, by its id, as `Snakepit.Worker.stop/1` does. Its supervisor may start it again."
  @spec stop(node(), String.t(), timeout()) :: :ok | {:error, Error.t()}
  def stop(node, id, timeout \\ 30_000) when is_atom(node) and is_binary(id) do
    :erpc.call(node, __MODULE__, :stop_own, [id], timeout)
  rescue
    error in ErlangError ->
      detail = "node #{node} does not answer: #{inspect(error.original)}"
      {:error, %Error{operation: :stop, reason: :unreachable, worker_id: id, detail: detail}}
  end

  @doc false
  def stop_own(id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, %{owner: owner}} -> Worker.stop(owner)
      {:error, _none} -> {:error, %Error{operation: :stop, reason: :not_found, worker_id: id}}
    end
  end
end
