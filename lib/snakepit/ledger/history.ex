defmodule Snakepit.Ledger.History do
  @moduledoc false

  # Runs that have ended. A run is closed when the file `history` is in its directory. Its other files are
  # removed after that, so a run is closed or it is not, and never half.

  alias Snakepit.{DataDir, Native}
  alias Snakepit.Ledger.{RunDirectory, Seal}

  # Many times what a run's record takes.
  @max_bytes 1024 * 1024

  @typedoc "How a run has ended, when, and how many of its processes were found, killed and gone then."
  @type ending :: %{
          optional(:usage) => map(),
          terminated_by: atom(),
          ended_at: integer(),
          found: non_neg_integer(),
          killed: non_neg_integer(),
          gone: non_neg_integer(),
          ambiguous: non_neg_integer()
        }

  @doc """
  Closes a run. `record` is what the run recorded of itself, `nil` if that was lost. With `keep`, all but so many
  of the newest closed runs are removed.
  """
  @spec close(Path.t(), map() | nil, ending(), non_neg_integer() | :all) ::
          :ok | {:error, File.posix()}
  def close(directory, record, ending, keep \\ :all) do
    data_dir = Path.dirname(directory)
    earlier = list(data_dir)
    record = record || %{}

    closed =
      record
      |> Map.drop([:beam, :place])
      |> Map.merge(ending)
      |> Map.merge(%{
        run_id: Path.basename(directory),
        clean_shutdown: record[:clean_shutdown] == true,
        sequence: next_sequence(earlier)
      })

    with :ok <- write(directory, Seal.seal(closed)) do
      with {:ok, files} <- Native.directory_list(directory),
           do: RunDirectory.tidy(directory, files)

      drop([closed | earlier], data_dir, keep)
    end
  end

  @doc "Returns what the record of a run says of the resources that its processes have used, by its obituary."
  @spec usage(map() | nil) :: %{optional(:usage) => map()}
  def usage(nil), do: %{}
  def usage(%{usage: usage}), do: %{usage: usage}

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

  # With its lock, so that no other start reads it meanwhile.
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
