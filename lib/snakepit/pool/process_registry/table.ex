defmodule Snakepit.Pool.ProcessRegistry.Table do
  @moduledoc false

  # The workers by their ids. Written by the workers themselves, so that none waits for another; it goes
  # with the process that has made it, and then all of this raises `ArgumentError`.
  #
  # Beside each is a gate, for a reservation that one activates while another forgets it.

  alias Snakepit.Native

  @table Snakepit.Pool.ProcessRegistry
  # Workers whose owners are not watched yet.
  @new Module.concat(@table, New)
  @filling Module.concat(@table, Filling)
  # How long a registry that is being started again is waited for.
  @patience_ms 10_000
  @pause_ms 10

  @doc "Makes the table, with those that are known from before."
  def new(infos) do
    options = [:named_table, :public, :set, read_concurrency: true, write_concurrency: true]
    :ets.new(@new, options)

    # Order: filled, then named. In a table that is there but not full yet a worker would seem to be gone,
    # and another could take its id.
    filling = :ets.new(@filling, options)
    :ets.insert(filling, Enum.map(infos, &entry/1))
    :ets.rename(filling, @table)
  end

  @doc "Puts one there, if nobody has its id. Gives whether."
  def claim(info), do: :ets.insert_new(@table, entry(info))

  @doc "Puts one there, with a gate that nobody has passed."
  def put(info), do: :ets.insert(@table, entry(info))

  def delete(worker_id), do: :ets.delete(@table, worker_id)

  @doc """
  Says whose owner is to be watched. Not by a message: to wake another process takes longer than all
  else that a registration does, at the very moment at which the new OS process needs the processor.
  """
  def note_new(worker_id, owner), do: :ets.insert(@new, {worker_id, owner})

  @doc "Takes it back. Gives whether nobody had asked for it yet."
  def drop_new(worker_id), do: :ets.take(@new, worker_id) != []

  @doc "Those of whom this was said, once, as ids and owners."
  def take_new do
    for new <- :ets.tab2list(@new) do
      :ets.delete_object(@new, new)
      new
    end
  end

  def lookup(worker_id) do
    case :ets.lookup(@table, worker_id) do
      [{_id, info, _gate}] -> info
      [] -> nil
    end
  end

  def all, do: for({_id, info, _gate} <- :ets.tab2list(@table), do: info)

  @doc """
  Calls the function, again and again while the registry is being started again: a guardian that is lost
  takes the registry along, and this table, and both are back in a moment. Not for those whom that start
  waits for.
  """
  def await(fun, patience_ms \\ @patience_ms) do
    fun.()
  catch
    kind, reason ->
      if patience_ms <= 0 or Process.whereis(Snakepit.RootSupervisor) == nil,
        do: :erlang.raise(kind, reason, __STACKTRACE__)

      receive(after: (@pause_ms -> await(fun, patience_ms - @pause_ms)))
  end

  @doc "Those that were reserved before that time and are not active. Copies no others."
  def reserved_before(limit_ms) do
    pattern = {:_, %{status: :reserved, since_ms: :"$1"}, :_}

    for {_id, info, _gate} <- :ets.select(@table, [{pattern, [{:<, :"$1", limit_ms}], [:"$_"]}]),
        do: info
  end

  @doc "Whoever gets `true` has the reservation, to activate or to forget it."
  def take_reservation(worker_id) do
    gates = for {_id, _info, gate} <- :ets.lookup(@table, worker_id), do: gate
    Enum.any?(gates, &(:atomics.compare_exchange(&1, 1, 0, 1) == :ok))
  end

  @doc "The same for an entry that is still as it was."
  def take(%{worker_id: worker_id} = info) do
    case :ets.lookup(@table, worker_id) do
      [{_id, ^info, gate}] -> :atomics.compare_exchange(gate, 1, 0, 1) == :ok
      _gone_or_changed -> false
    end
  end

  @doc "Lets another take it. One that is gone by now stays away."
  def reopen(worker_id), do: :ets.update_element(@table, worker_id, {3, gate()})

  @doc "Whether the process of a worker is gone. In doubt it is there."
  def gone?(%{identity: nil}), do: true
  def gone?(%{identity: identity}), do: Native.process_alive(identity) == {:ok, false}

  defp entry(info), do: {info.worker_id, info, gate()}
  # Whoever makes the 0 a 1 has passed it.
  defp gate, do: :atomics.new(1, [])
end
