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

  @doc "Creates the table, with the workers that the ledger knows."
  def new(infos) do
    options = [:named_table, :public, :set, read_concurrency: true, write_concurrency: true]
    :ets.new(@new, options)

    # Order: filled, then named. In a table that is there but not full yet a worker would seem to be gone,
    # and another could take its id.
    filling = :ets.new(@filling, options)
    :ets.insert(filling, Enum.map(infos, &entry/1))
    :ets.rename(filling, @table)
  end

  @doc "Inserts an entry if its id is free. Returns whether it was."
  def claim(info), do: :ets.insert_new(@table, entry(info))

  @doc "Inserts an entry with a new gate."
  def put(info), do: :ets.insert(@table, entry(info))

  def delete(worker_id), do: :ets.delete(@table, worker_id)

  @doc """
  Notes a worker whose owner is to be monitored. This is no message, because waking another process takes longer than
  the rest of a registration, at the moment at which the new OS process needs the processor.
  """
  def note_new(worker_id, owner), do: :ets.insert(@new, {worker_id, owner})

  @doc "Takes the note back. Returns whether it was still there."
  def drop_new(worker_id), do: :ets.take(@new, worker_id) != []

  @doc "Takes all notes of workers whose owners are not monitored yet, as ids and owners."
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
  Calls the function, and calls it again while the registry is being restarted: the loss of a guardian ends the registry
  and this table too, and both are back in a moment. A process that this restart waits for must not call it.
  """
  def await(fun, patience_ms \\ @patience_ms) do
    fun.()
  catch
    kind, reason ->
      if patience_ms <= 0 or Process.whereis(Snakepit.RootSupervisor) == nil,
        do: :erlang.raise(kind, reason, __STACKTRACE__)

      receive(after: (@pause_ms -> await(fun, patience_ms - @pause_ms)))
  end

  @doc "Returns the reservations that were made before that time. Copies no other entries."
  def reserved_before(limit_ms) do
    pattern = {:_, %{status: :reserved, since_ms: :"$1"}, :_}

    for {_id, info, _gate} <- :ets.select(@table, [{pattern, [{:<, :"$1", limit_ms}], [:"$_"]}]),
        do: info
  end

  @doc "Takes a reservation. The one caller that gets `true` may activate or delete it."
  def take_reservation(worker_id) do
    gates = for {_id, _info, gate} <- :ets.lookup(@table, worker_id), do: gate
    Enum.any?(gates, &(:atomics.compare_exchange(&1, 1, 0, 1) == :ok))
  end

  @doc "Takes an entry in the same way, if it has not changed."
  def take(%{worker_id: worker_id} = info) do
    case :ets.lookup(@table, worker_id) do
      [{_id, ^info, gate}] -> :atomics.compare_exchange(gate, 1, 0, 1) == :ok
      _gone_or_changed -> false
    end
  end

  @doc "Lets another caller take the entry. Does nothing if it is gone."
  def reopen(worker_id), do: :ets.update_element(@table, worker_id, {3, gate()})

  @doc "Returns whether the process of a worker is gone; `false` in doubt."
  def gone?(%{identity: nil}), do: true
  def gone?(%{identity: identity}), do: Native.process_alive(identity) == {:ok, false}

  defp entry(info), do: {info.worker_id, info, gate()}
  # The caller that changes the 0 to a 1 has passed the gate.
  defp gate, do: :atomics.new(1, [])
end
