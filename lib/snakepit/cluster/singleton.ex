defmodule Snakepit.Cluster.Singleton do
  @moduledoc """
  An OS process that exists at most once in a cluster.

      # config/runtime.exs, the same on every node
      config :snakepit, cluster: [members: [:"app@one", :"app@two", :"app@three"], lease: 5_000]

      # in the supervision tree of every node
      {Snakepit.Cluster.Singleton, id: "scheduler", cmd: ["python3", "scheduler.py"]}

  The process runs on one of the nodes. When that node dies, stops, hangs or is cut off, it is started on another one.
  Options are those of `Snakepit.Worker`, whose process it is, and:

  #{Snakepit.Options.docs(Snakepit.Cluster.Singleton.Options.schema())}

  ## What is promised

  *Never two at a time*, also while the network is divided, and also when a BEAM hangs while its processes live on. There
  may be none for a while: that is the price. The guide "Cluster" says what this rests on, and where it ends.

  Whoever wants to run the process needs a **lease**, which a majority of the members grants to one at a time. The holder
  renews it each third of its length. If it cannot, its guardian asks the process to end, and kills it before the lease
  is over: no BEAM is needed for that. Another node gets the lease when it is over on a majority of the members, by their
  clocks.

    * When the holder's node dies, another one has the process after one lease, and at most a second more.
    * After an orderly stop it takes as long as the process takes to end, and half a second.
    * Without a majority of the members there is no process.
    * A member that has restarted grants nothing for one lease, because it does not know what it granted before. So restart
      nodes one after the other, with more than that in between. With three members of which two have restarted within
      one lease there is no majority for as long.

  The program finds a **token** in `SNAKEPIT_FENCING_TOKEN`, which is greater for each later process. What writes to shared
  storage passes it on, and the storage refuses what comes with a smaller one than it has seen. Without that, a write that
  was under way when its process was killed may arrive when the next one runs already.

  ## When the program ends

  If the program ends by itself, the lease is given back, and this process exits with the reason that
  `Snakepit.Worker` has for it. Its supervisor starts it again, and any node may be the next.
  """

  alias Snakepit.Cluster.Singleton.{Options, Server}
  alias Snakepit.Worker

  @doc "Returns a child specification, whose id is the `:id`."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    spec = Worker.child_spec(opts)
    %{spec | start: {__MODULE__, :start_link, [opts]}, id: {__MODULE__, opts[:id]}}
  end

  @doc "Starts to try for the lease. Returns at once. Raises `ArgumentError` on invalid options."
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    options = Options.new!(opts)
    GenServer.start_link(Server, options, Keyword.take(opts, [:name]))
  end

  @doc """
  Returns whether this node waits for the lease or has it, then with the token and the worker, a `Snakepit.Worker`.
  """
  @spec info(GenServer.server()) ::
          :waiting | {:running, %{token: pos_integer(), worker: pid()}}
  def info(singleton), do: GenServer.call(singleton, :info)
end
