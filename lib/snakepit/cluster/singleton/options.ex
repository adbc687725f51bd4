defmodule Snakepit.Cluster.Singleton.Options do
  @moduledoc false

  # The options of `Snakepit.Cluster.Singleton.start_link/1`.

  alias Snakepit.{Config, Options, Worker}
  alias Snakepit.Cluster.Lease

  @schema [
    id: [
      type: {:custom, &__MODULE__.id?/1, "a string of 1 to 255 bytes"},
      required: true,
      doc: "what exists at most once: the same on each node"
    ],
    lease: [
      type: {:or, [{:custom, &__MODULE__.lease?/1, "a module"}]},
      default: Lease.Majority,
      doc: "a module with the behaviour `Snakepit.Cluster.Lease`, or `{module, options}`"
    ]
  ]

  @enforce_keys [:id, :lease, :worker, :stop_timeout]
  defstruct @enforce_keys

  def schema, do: @schema

  def new!(opts) do
    {own, worker} = Keyword.split(opts, Keyword.keys(@schema))
    own = Options.validate!(own, @schema)
    worker = Keyword.drop(worker, [:name])
    # A worker that started its process again by itself would do so without asking for the lease.
    worker = Keyword.merge(worker, id: own.id, on_guardian_down: :exit)
    # Checked here, and not on the node and at the time that gets the lease.
    Worker.Options.new!(worker)
    check_members!(own.lease)

    struct!(__MODULE__,
      id: own.id,
      lease: with(module when is_atom(module) <- own.lease, do: {module, []}),
      worker: worker,
      stop_timeout: Worker.Options.stop_timeout(worker)
    )
  end

  defp check_members!(lease) do
    if lease == Lease.Majority and Config.current().cluster.members == [] do
      raise ArgumentError,
            "a singleton needs members who grant its lease: add config :snakepit, cluster: [members: [...]] with the " <>
              "names of three or more nodes"
    end
  end

  @doc false
  def id?(id),
    do: is_binary(id) and byte_size(id) in 1..255 and Snakepit.Options.Type.without_nul(id)

  @doc false
  def lease?({module, opts}), do: is_atom(module) and Keyword.keyword?(opts)
  def lease?(module), do: is_atom(module) and module != nil
end
