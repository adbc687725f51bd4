defmodule Snakepit.Test.Grave do
  @moduledoc """
  Dead runs to order: the files of one, written by the very code that writes them, for processes that
  the test has started. For a second BEAM to call, in whose data directory they are dug.
  """

  alias Snakepit.{Native, Run, RunID}
  alias Snakepit.Ledger.{Journal, Table}

  @doc """
  Makes the directory of a run whose BEAM, told by `beam`, is dead. `workers` are ids, OS pids and
  identities: of the first half the table knows, of the others the journal alone. Gives the directory.
  """
  def dig(run_id, beam, workers, adopted) do
    run = Run.current!()
    directory = Path.join(run.data_dir, run_id)
    {:ok, {}} = Native.directory_make(directory)
    {:ok, lock} = Native.lock_take(Path.join(directory, "lock"))
    {:ok, journal} = Journal.open(directory)
    name = {__MODULE__, run_id}
    {:ok, table} = Table.open(name, directory)

    record = %{run.record | run_id: run_id, beam: beam, state: :running, beam_pid: 1}
    {early, late} = Enum.split(workers, div(length(workers), 2))

    for entry <- [{:run, record} | entries(run_id, early)],
        do: :ok = Journal.append(journal, entry)

    :ok = Journal.checkpoint(journal, directory, &Table.store(table, &1))
    for entry <- entries(run_id, late), do: :ok = Journal.append(journal, entry)
    :ok = :dets.close(table)
    Native.journal_close(journal)
    for os_pid <- adopted, do: adopt(directory, os_pid)
    Native.lock_release(lock)
    directory
  end

  @doc "Appends terms to a journal that is whole, as if they had been written by us."
  def append(directory, terms) do
    {:ok, journal} = Journal.open(directory)
    for term <- terms, do: :ok = Journal.append(journal, term)
    Native.journal_close(journal)
  end

  @doc "Puts terms into a table that is whole."
  def insert(directory, objects) do
    {:ok, table} = Table.open({__MODULE__, directory}, directory)
    :ok = :dets.insert(table, objects)
    :ok = :dets.close(table)
  end

  @doc "The soft limit that descendants of a run's children inherit."
  def lineage(run_id), do: Bitwise.bsl(String.to_integer(run_id, 36), 26)

  @doc "A record of a worker that is sealed as it should be."
  def worker(run_id, worker_id, fields) do
    record =
      Enum.into(fields, %{
        worker_id: worker_id,
        run_id: run_id,
        status: :active,
        os_pid: nil,
        pgid: nil,
        identity: nil,
        elixir_pid: "<0.1.0>",
        command: ["sleep"],
        spawned_at: 0
      })

    {:worker, Map.merge(record, Native.record_seal(record))}
  end

  @doc "Who has this pid now."
  def identity(os_pid) do
    {:ok, {^os_pid, identity}} = Native.process_lookup(os_pid)
    identity
  end

  @doc "An id that nobody has."
  defdelegate run_id, to: RunID, as: :generate

  defp entries(run_id, workers) do
    for {id, os_pid, identity} <- workers,
        do: {:worker, id, run_id, :active, os_pid, os_pid, identity, "<0.1.0>", ["sleep"], 0}
  end

  # As the guardian does.
  defp adopt(directory, os_pid) do
    identity = identity(os_pid)
    entry = <<byte_size(identity)::32, identity::binary>>
    File.write!(Path.join(directory, "adopted"), entry, [:append])
  end
end
