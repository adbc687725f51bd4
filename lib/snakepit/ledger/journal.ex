defmodule Snakepit.Ledger.Journal do
  @moduledoc false

  # A write-ahead log: what the ledger must not lose, in the order in which it happened. At a checkpoint,
  # `Snakepit.Pool.PIDLedger` stores it in DETS. A process appends its own entries. It waits until an entry is
  # written, or gets a message when it is, or leaves a note that is written with the next entry, within a
  # second.
  #
  # There are two files: `journal` is being written, `journal.old` is being stored. A dead run is read from
  # DETS, `journal.old` and `journal`, in this order.

  alias Snakepit.{DataDir, Error, Native}
  alias Snakepit.Ledger.{RunDirectory, Seal}

  # Some hundred thousand entries. There are never more, unless checkpoints fail.
  @max_bytes 64 * 1024 * 1024

  # A worker's is a tuple of the fields of `Snakepit.Pool.PIDLedger.entry/0`, in their order: half the
  # bytes of a map, and half the time. It needs no seal of its own, unlike in DETS.
  @type entry ::
          {:run, map()}
          | {:guardian, Native.identity()}
          | {:grace, non_neg_integer()}
          | {:children, added :: [Native.identity()], gone :: [Native.identity()] | :all}
          | {:worker, String.t(), String.t(), atom(), integer() | nil, integer() | nil,
             binary() | nil, String.t() | nil, [binary()], integer()}
          | {:gone, worker_id :: String.t()}

  @typedoc "What a process is told, behind its tag, of an entry that it has begun to append."
  @type answer :: {:ok, term()} | {:error, {atom(), integer() | nil}}

  @doc "Opens the journal of a run's directory to write to it."
  @spec open(Path.t()) :: {:ok, reference()} | {:error, Error.t()}
  def open(directory) do
    wrap(Native.journal_open(RunDirectory.journal(directory), @max_bytes), :journal_open)
  end

  @doc """
  Appends an entry that another one follows, or without which the ledger has too many entries and not too few.
  It survives this BEAM as soon as any later entry does.
  """
  @spec note(reference(), entry()) :: :ok | {:error, Error.t()}
  def note(journal, entry) do
    if Native.journal_note(journal, :erlang.term_to_binary(entry)),
      do: :ok,
      else: append(journal, entry)
  end

  @doc "Appends an entry. It survives this BEAM when this returns."
  @spec append(reference(), entry()) :: :ok | {:error, Error.t()}
  def append(journal, entry) do
    tag = make_ref()

    # A disk may stall for any time. No normal scheduler waits for it, and one dirty scheduler for all callers.
    case Native.journal_append(journal, :erlang.term_to_binary(entry), tag) do
      {:ok, :write} ->
        Native.journal_write(journal)
        await(tag)

      {:ok, :waits} ->
        await(tag)

      done ->
        appended(done)
    end
  end

  defp await(tag) do
    receive do
      {^tag, answer} -> appended(answer)
    end
  end

  @doc "As `append/2`, without waiting: the calling process gets `{tag, answer}`, see `appended/1`."
  @spec begin_append(reference(), entry(), reference()) :: :ok
  def begin_append(journal, entry, tag) do
    case Native.journal_append(journal, :erlang.term_to_binary(entry), tag) do
      {:ok, :write} -> spawn(Native, :journal_write, [journal])
      {:ok, :waits} -> :ok
      done -> send(self(), {tag, done})
    end

    :ok
  end

  @doc "Returns the result in an answer."
  @spec appended(answer()) :: :ok | {:error, Error.t()}
  def appended({:ok, _appended}), do: :ok
  def appended({:error, error}), do: {:error, explain(Error.from_native(:journal, error))}

  @doc "Writes the notes that no entry has followed yet."
  @spec flush(reference()) :: :ok
  def flush(journal), do: Native.journal_write(journal)

  @doc "Waits until the disk has it too."
  @spec sync(reference()) :: :ok | {:error, Error.t()}
  def sync(journal) do
    with {:ok, {}} <- wrap(Native.journal_sync(journal), :journal_sync), do: :ok
  end

  @doc "Returns whether nothing was appended since the last checkpoint."
  @spec empty?(reference()) :: boolean()
  def empty?(journal), do: Native.journal_empty(journal)

  @doc """
  Passes what was appended so far to `fun`, and deletes it if that returns `:ok`. If it does not, the
  next checkpoint has the same entries again.
  """
  @spec checkpoint(reference(), Path.t(), ([entry()] -> :ok | {:error, Error.t()})) ::
          :ok | {:error, Error.t()}
  def checkpoint(journal, directory, fun) do
    old = RunDirectory.old_journal(directory)
    flush(journal)

    # Order: a file that is there already was not stored last time, and goes first.
    with :ok <- checkpoint_file(old, fun),
         {:ok, {}} <- wrap(Native.journal_rotate(journal, old), :journal_rotate) do
      checkpoint_file(old, fun)
    end
  end

  @doc """
  Returns the entries of a dead run's journal, oldest first, and how many bytes of it are damaged.
  """
  @spec read(Path.t()) :: {[entry()], non_neg_integer()}
  def read(directory) do
    # Not readable at all: as good as damaged, and a size of one says so.
    read(directory, fn _reason -> {[], 1} end)
  end

  @doc "As `read/1`, but raises if the journal cannot be read for a reason that may pass."
  @spec read!(Path.t()) :: {[entry()], non_neg_integer()}
  def read!(directory) do
    read(directory, &DataDir.unreadable!(:journal_read, &1, {[], 1}))
  end

  defp read(directory, unreadable) do
    {old, ignored_old} = read_file(RunDirectory.old_journal(directory), unreadable)
    {current, ignored} = read_file(RunDirectory.journal(directory), unreadable)
    {old ++ current, ignored_old + ignored}
  end

  defp checkpoint_file(path, fun) do
    # A file that cannot be inspected or read now, for want of a descriptor say, is neither missing nor
    # empty, and must not be overwritten or deleted.
    with {:ok, _stat} <- stat(path),
         {:ok, contents} <- wrap(Native.journal_read(path), :journal_read),
         :ok <- fun.(decode(contents)) do
      delete(path)
    else
      :missing -> :ok
      {:error, error} -> {:error, error}
    end
  end

  defp stat(path) do
    case File.lstat(path) do
      {:error, :enoent} -> :missing
      {:error, reason} -> {:error, %Error{operation: :journal_read, reason: reason}}
      found -> found
    end
  end

  defp delete(path) do
    with {:error, reason} <- File.rm(path),
         do: {:error, %Error{operation: :journal_delete, reason: reason}}
  end

  defp read_file(path, unreadable) do
    case Native.journal_read(path) do
      {:ok, %{ignored: ignored} = contents} -> {decode(contents), ignored}
      {:error, {reason, _os_pid}} -> unreadable.(reason)
    end
  end

  defp decode(%{entries: entries}),
    do: for(entry <- entries, {:ok, term} <- [Seal.decode(entry)], do: term)

  defp wrap({:ok, value}, _operation), do: {:ok, value}
  defp wrap({:error, error}, operation), do: {:error, Error.from_native(operation, error)}

  defp explain(%Error{reason: :estale} = error),
    do: %{error | detail: "the run's directory was deleted, so nothing can be recorded"}

  defp explain(%Error{reason: :efbig} = error),
    do: %{error | detail: "the journal is full: the ledger cannot be written"}

  defp explain(error), do: error
end
