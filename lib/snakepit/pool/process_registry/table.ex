defmodule Snakepit.Pool.ProcessRegistry.Table do
  @moduledoc false

  # The workers by their ids. The workers write their entries themselves, so that none waits for another.
  # The table vanishes with the registry's process, and is back when that has been started again. Meanwhile
  # every function that reads or writes it returns `:registry_down`.
  #
  # Each entry has a gate, for a reservation that one process activates while another forgets it.

  alias Snakepit.{Error, Native}

  @table Snakepit.Pool.ProcessRegistry
  # Workers whose owners are not monitored yet.
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
  def claim(info), do: with_table(@table, &:ets.insert_new(&1, entry(info)))

  @doc "Inserts an entry with a new gate."
  def put(info), do: with_table(@table, &:ets.insert(&1, entry(info)))

  @doc "Deletes an entry."
  def delete(worker_id), do: with_table(@table, &:ets.delete(&1, worker_id))

  @doc """
  Notes a worker whose owner is to be monitored. This is no message, because waking another process takes longer than
  the rest of a registration, at the moment at which the new OS process needs the processor.
  """
  def note_new(worker_id, owner), do: with_table(@new, &:ets.insert(&1, {worker_id, owner}))

  @doc "Takes the note back. Returns whether it was still there."
  def drop_new(worker_id), do: with_table(@new, &(:ets.take(&1, worker_id) != []))

  @doc "Takes all notes of workers whose owners are not monitored yet, as ids and owners."
  def take_new do
    for new <- :ets.tab2list(@new) do
      :ets.delete_object(@new, new)
      new
    end
  end

  @doc "Returns what is known of a worker, or `nil`."
  def lookup(worker_id) do
    with_table(@table, fn table ->
      case :ets.lookup(table, worker_id) do
        [{_id, info, _gate}] -> info
        [] -> nil
      end
    end)
  end

  @doc "Returns what is known of all workers."
  def all,
    do: with_table(@table, &for({_id, info, _gate} <- :ets.tab2list(&1), do: info))

  @doc """
  Returns what the function returns. If that is `:registry_down`, or the function exits because the registry's
  process is not there, calls it again: the loss of a guardian ends the registry and this table too, and both
  are back in a moment. Raises `Snakepit.Error` if they are not back within #{div(@patience_ms, 1_000)} seconds, or if the
  application has stopped. A process that this restart waits for must not call it.
  """
  def await(fun, patience_ms \\ @patience_ms) do
    case attempt(fun) do
      :registry_down ->
        if patience_ms <= 0 or Process.whereis(Snakepit.RootSupervisor) == nil,
          do: raise(%Error{operation: :await_registry, reason: :registry_down})

        receive(after: (@pause_ms -> await(fun, patience_ms - @pause_ms)))

      answer ->
        answer
    end
  end

  defp attempt(fun) do
    fun.()
  catch
    :exit, {_reason, {GenServer, :call, [@table | _]}} -> :registry_down
  end

  @doc "Returns the reservations that were made before that time. Copies no other entries."
  def reserved_before(limit_ms) do
    pattern = {:_, %{status: :reserved, since_ms: :"$1"}, :_}

    for {_id, info, _gate} <- :ets.select(@table, [{pattern, [{:<, :"$1", limit_ms}], [:"$_"]}]),
        do: info
  end

  @doc "Takes a reservation. The one caller that gets `true` may activate or delete it."
  def take_reservation(worker_id) do
    with_table(@table, fn table ->
      gates = for {_id, _info, gate} <- :ets.lookup(table, worker_id), do: gate
      Enum.any?(gates, &pass/1)
    end)
  end

  @doc "Takes an entry in the same way, if it has not changed."
  def take(%{worker_id: worker_id} = info) do
    with_table(@table, fn table ->
      case :ets.lookup(table, worker_id) do
        [{_id, ^info, gate}] -> pass(gate)
        _gone_or_changed -> false
      end
    end)
  end

  @doc "Lets another caller take the entry. Does nothing if it is gone."
  def reopen(worker_id),
    do: with_table(@table, &:ets.update_element(&1, worker_id, {3, gate()}))

  @doc "Returns whether the process of a worker is gone; `false` in doubt."
  def gone?(%{identity: nil}), do: true
  def gone?(%{identity: identity}), do: Native.process_alive(identity) == {:ok, false}

  defp entry(info), do: {info.worker_id, info, gate()}
  # The caller that changes the 0 to a 1 has passed the gate.
  defp gate, do: :atomics.new(1, [])
  defp pass(gate), do: :atomics.compare_exchange(gate, 1, 0, 1) == :ok

  # By its identifier, which no later table has: so a table that vanished is told from any other mistake.
  @doc false
  def with_table(name, fun) do
    case :ets.whereis(name) do
      :undefined -> :registry_down
      table -> with_table_of(table, fun)
    end
  end

  defp with_table_of(table, fun) do
    fun.(table)
  rescue
    error in ArgumentError ->
      if :ets.info(table, :id) == :undefined,
        do: :registry_down,
        else: reraise(error, __STACKTRACE__)
  end
end
