defmodule Snakepit.History do
  @moduledoc false

  # Runs that have ended. What is left of one is its directory with a file `history`; the files that
  # it lived from go away once that is written, so a run is closed or not, and never half.

  alias Snakepit.{DataDir, Native, Seal}
  alias Snakepit.Ledger.{Journal, Table}

  @file_name "history"
  # What stays of a closed run.
  @kept ["lock", @file_name, "guardian.log"]

  @doc """
  Whether a run's directory is history. Raises if that cannot be told now: it must not be closed twice.
  """
  @spec closed?(Path.t()) :: boolean()
  def closed?(directory) do
    case File.lstat(Path.join(directory, @file_name)) do
      {:ok, _stat} -> true
      {:error, reason} -> DataDir.unreadable!(:reap, reason, false)
    end
  end

  @doc """
  Closes a run: how it ended, and what was found of it. `record` is `nil` for a run that nobody knows
  anything of.
  """
  @spec close(Path.t(), map() | nil, atom(), map()) :: :ok | {:error, File.posix()}
  def close(directory, record, terminated_by, counts) do
    closed =
      (record || %{})
      |> Map.drop([:beam])
      |> Map.merge(counts)
      |> Map.merge(%{
        run_id: Path.basename(directory),
        terminated_by: terminated_by,
        ended_at: System.os_time(:millisecond),
        sequence: next_sequence(Path.dirname(directory))
      })

    with :ok <- write(directory, Seal.seal(closed)), do: tidy(directory)
  end

  @doc """
  Removes what a closed run has no more use for, if it was closed by somebody who had no time to. There
  are dozens of them at each start, so they are looked at first.
  """
  @spec tidy_rest(Path.t()) :: :ok
  def tidy_rest(directory) do
    case Native.directory_list(directory) do
      {:ok, names} -> if names -- @kept != [], do: tidy(directory), else: :ok
      # Another was quicker to remove it, or the next start has more luck.
      {:error, _reason} -> :ok
    end
  end

  @doc "Removes what a closed run has no more use for."
  @spec tidy(Path.t()) :: :ok
  def tidy(directory) do
    Journal.remove(directory)

    # The door is the guardian's socket, which it had no time to remove.
    # A guardian that was killed while it exchanged its notes has left the new ones too.
    table = Path.basename(Table.path(directory))

    for name <- [table, "adopted", "adopted.new", "obituary", "door"],
        do: File.rm(Path.join(directory, name))

    :ok
  end

  @doc "All closed runs of a data directory, newest first. Files that are damaged are left out."
  @spec list(Path.t()) :: [map()]
  def list(data_dir) do
    runs =
      for {_id, directory} <- DataDir.runs(data_dir),
          {:ok, sealed} <- [File.read(Path.join(directory, @file_name))],
          {:ok, %{sequence: _, run_id: _} = run} <- [Seal.open(sealed)],
          do: run

    Enum.sort_by(runs, &{&1.sequence, &1.run_id}, :desc)
  end

  @doc "Removes all but the newest."
  @spec prune(Path.t(), non_neg_integer()) :: :ok
  def prune(data_dir, keep) do
    for %{run_id: run_id} <- data_dir |> list() |> Enum.drop(keep),
        do: remove(Path.join(data_dir, run_id))

    :ok
  end

  # With its lock, so that nobody else is looking at it.
  defp remove(directory) do
    with {:ok, lock} when lock != nil <- Native.lock_take(Path.join(directory, "lock")) do
      File.rm_rf(directory)
      Native.lock_release(lock)
    end
  end

  # Counted, because a clock can be set back. Two that are closed at one moment may share a number.
  defp next_sequence(data_dir) do
    case list(data_dir) do
      [%{sequence: sequence} | _] -> sequence + 1
      [] -> 1
    end
  end

  # Whole or not at all.
  defp write(directory, bytes) do
    temporary = Path.join(directory, "history.new")

    with :ok <- write_synced(temporary, bytes),
         do: File.rename(temporary, Path.join(directory, @file_name))
  end

  defp write_synced(path, bytes) do
    with {:ok, file} <- :file.open(path, [:write, :raw, :binary]) do
      written = with :ok <- :file.write(file, bytes), do: :file.sync(file)
      with :ok <- :file.close(file), do: written
    end
  end
end
