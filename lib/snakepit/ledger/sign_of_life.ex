defmodule Snakepit.Ledger.SignOfLife do
  @moduledoc false

  # Nobody can ask whether a run in another place is alive. Its lock does not tell where locks end at the
  # kernel: on NFS without locks, on virtiofs, in gVisor. So each run writes a file at intervals, and the age
  # of that file tells others that the run is alive.
  #
  # Ages are differences between times that two runs have written, so both are of the file system's own clock.
  # They decide how long the files of a run are kept, and never which process is signalled.

  alias Snakepit.{Native, Run}
  alias Snakepit.Ledger.RunDirectory

  @doc "Writes the file. If that fails, the next time may succeed."
  @spec give(Run.t()) :: :ok
  def give(run) do
    with {:ok, file} <- :file.open(RunDirectory.alive(run.directory), [:write, :raw]) do
      # A change of length is a change on every file system.
      :file.write(file, "alive\n")
      :file.close(file)
    end

    :ok
  end

  @doc "Returns how many seconds the last sign in a directory is older than that of `run`; `nil` if there is none."
  @spec age_s(Path.t(), Run.t()) :: integer() | nil
  def age_s(directory, run) do
    with then when then != nil <- last_s(directory),
         do: max((last_s(run.directory) || then) - then, 0)
  end

  @doc "Returns when a file of the directory was last written, in seconds since the epoch; `nil` if there is none."
  @spec last_s(Path.t()) :: integer() | nil
  def last_s(directory) do
    case Native.directory_list(directory) do
      {:ok, names} ->
        ["." | names]
        |> Enum.flat_map(&changed(Path.join(directory, &1)))
        |> Enum.max(fn -> nil end)

      {:error, _reason} ->
        nil
    end
  end

  defp changed(path) do
    case File.lstat(path, time: :posix) do
      {:ok, %File.Stat{mtime: mtime}} -> [mtime]
      {:error, _gone} -> []
    end
  end
end
