defmodule Snakepit.Ledger.History do
  @moduledoc false

  # Runs that have ended. What is left of one is its directory with a file `history`; the files that
  # it lived from go away once that is written, so a run is closed or not, and never half.

  alias Snakepit.{DataDir, Native}
  alias Snakepit.Ledger.{RunDirectory, Seal}

  # Many times what a run's record takes.
  @max_bytes 1024 * 1024

  @doc """
  Closes a run: how it ended, and what was found of it. `record` is `nil` for a run that nobody knows
  anything of. With `keep`, all but so many of the newest are removed then.
  """
  @spec close(Path.t(), map() | nil, atom(), map(), non_neg_integer() | :all) ::
          :ok | {:error, File.posix()}
  def close(directory, record, terminated_by, counts, keep \\ :all) do
    data_dir = Path.dirname(directory)
    earlier = list(data_dir)

    closed =
      (record || %{})
      |> Map.drop([:beam, :place])
      |> Map.merge(counts)
      |> Map.merge(%{
        run_id: Path.basename(directory),
        terminated_by: terminated_by,
        ended_at: System.os_time(:millisecond),
        sequence: next_sequence(earlier)
      })

    with :ok <- write(directory, Seal.seal(closed)) do
      with {:ok, files} <- Native.directory_list(directory),
           do: RunDirectory.tidy(directory, files)

      drop([closed | earlier], data_dir, keep)
    end
  end

  @doc "Returns all closed runs of a data directory, newest first. Corrupt files are left out."
  @spec list(Path.t()) :: [map()]
  def list(data_dir) do
    paths =
      for {_id, directory, files} <- DataDir.runs(data_dir),
          RunDirectory.closed?(files),
          do: RunDirectory.history(directory)

    runs =
      for sealed <- Native.files_read(paths, @max_bytes),
          {:ok, %{sequence: _, run_id: _} = run} <- [Seal.open(sealed)],
          do: run

    Enum.sort_by(runs, &{&1.sequence, &1.run_id}, :desc)
  end

  @doc "Removes all but the newest."
  @spec prune(Path.t(), non_neg_integer()) :: :ok
  def prune(data_dir, keep), do: data_dir |> list() |> drop(data_dir, keep)

  defp drop(_runs, _data_dir, :all), do: :ok

  defp drop(runs, data_dir, keep) do
    for %{run_id: run_id} <- Enum.drop(runs, keep), do: remove(Path.join(data_dir, run_id))
    :ok
  end

  # With its lock, so that nobody else is looking at it.
  defp remove(directory) do
    with {:ok, lock} when lock != nil <- Native.lock_take(RunDirectory.lock(directory)) do
      File.rm_rf(directory)
      Native.lock_release(lock)
    end
  end

  # Counted, because a clock can be set back. Two that are closed at one moment may share a number.
  defp next_sequence([%{sequence: sequence} | _]), do: sequence + 1
  defp next_sequence([]), do: 1

  # Whole or not at all.
  defp write(directory, bytes) do
    temporary = RunDirectory.new_history(directory)

    with :ok <- write_synced(temporary, bytes),
         do: :file.rename(temporary, RunDirectory.history(directory))
  end

  defp write_synced(path, bytes) do
    with {:ok, file} <- :file.open(path, [:write, :raw, :binary]) do
      written = with :ok <- :file.write(file, bytes), do: :file.datasync(file)
      with :ok <- :file.close(file), do: written
    end
  end
end
