defmodule Snakepit.Cluster.OncePerPartition do
  @moduledoc """
  An OS process that exists once among the nodes that hear each other, by `:global`.

      {Snakepit.Cluster.OncePerPartition, id: "cache-warmer", cmd: ["python3", "warm.py"]}

  This is the weaker sibling of `Snakepit.Cluster.Singleton`, for two nodes, or where no members are configured. *While the
  network is divided, each part has a process of its own*, and so has a node before it has connected to the others. When the
  parts hear each other again, `:global` decides which one goes on, and the others are ended; for a moment there are several
  then, too. There is no token.

  If two at a time could do harm, this is not for you.

  What it has in common with its sibling is that a BEAM that hangs keeps no process: the guardian ends it when the BEAM has
  not said for five seconds that it lives.

  Options are those of `Snakepit.Cluster.Singleton`, but for `:lease`.
  """

  alias Snakepit.Cluster.{Lease, Singleton}

  @doc "Returns a child specification, whose id is the `:id`."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    spec = Singleton.child_spec(opts)
    %{spec | start: {__MODULE__, :start_link, [opts]}, id: {__MODULE__, opts[:id]}}
  end

  @doc "Starts to try. Returns at once. Raises `ArgumentError` on invalid options."
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts), do: Singleton.start_link(Keyword.put(opts, :lease, Lease.Global))

  @doc "As `Snakepit.Cluster.Singleton.info/1`. The token means nothing here."
  defdelegate info(singleton), to: Singleton
end
