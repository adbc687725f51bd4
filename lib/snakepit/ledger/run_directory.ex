defmodule Snakepit.Ledger.RunDirectory do
  @moduledoc false

  # The names of the files in a run's directory. `guides/internals.md` says what each of them is for. The
  # guardian writes `adopted`, `obituary`, `listener` and `guardian.log`, whose names are in the core as well
  # (`run_directory.rs`).

  @lock "lock"
  @journal "journal"
  @old_journal "journal.old"
  @new_journal "journal.new"
  @table "ledger.dets"
  @adopted "adopted"
  @new_adopted "adopted.new"
  @obituary "obituary"
  @new_obituary "obituary.new"
  @listener "listener"
  @alive "alive"
  @history "history"
  @new_history "history.new"

  @doc "Returns the path of the lock that a BEAM holds for as long as it lives."
  def lock(directory), do: Path.join(directory, @lock)

  @doc "Returns the path of the journal that is being written."
  def journal(directory), do: Path.join(directory, @journal)

  @doc "Returns the path of the journal that is being stored in the table."
  def old_journal(directory), do: Path.join(directory, @old_journal)

  @doc "Returns the path of the DETS table."
  def table(directory), do: Path.join(directory, @table)

  @doc "Returns the path of the guardian's last word."
  def obituary(directory), do: Path.join(directory, @obituary)

  @doc "Returns the path of the sign of life for those who cannot see the process."
  def alive(directory), do: Path.join(directory, @alive)

  @doc "Returns the path of what is kept of a run that has ended."
  def history(directory), do: Path.join(directory, @history)

  @doc "Returns the path under which the history is written before it is renamed."
  def new_history(directory), do: Path.join(directory, @new_history)

  @doc "Returns whether a run has ended and was closed, by the names of its files."
  @spec closed?([binary()]) :: boolean()
  def closed?(files), do: @history in files

  @doc "Returns whether nothing but the lock and the journal is there, by the names of the files."
  @spec blank?([binary()]) :: boolean()
  def blank?(files), do: files -- [@lock, @journal] == []

  @doc """
  Removes the files among `files` that a closed run has no more use for. Whoever was killed while it replaced one
  of them has left the new one too. `obituary` and `guardian.log` stay: they tell people how the run ended.
  """
  @spec tidy(Path.t(), [binary()]) :: :ok
  def tidy(directory, files) do
    if @listener in files, do: remove_listener(Path.join(directory, @listener))

    for name <-
          [@journal, @old_journal, @new_journal, @table, @adopted, @new_adopted] ++
            [@new_obituary, @alive, @new_history],
        name in files,
        # By this process itself, and not by the one that serves all others.
        do: :file.delete(Path.join(directory, name), [:raw])

    :ok
  end

  # The guardian's socket, which it had no time to remove; or a link to it, where this path is too long for a
  # socket, and a directory was made for it.
  defp remove_listener(path) do
    with {:ok, socket} <- File.read_link(path) do
      File.rm(socket)
      File.rmdir(Path.dirname(socket))
    end

    File.rm(path)
  end
end
