defmodule Snakepit.Ledger.SignOfLife do
  @moduledoc false

  # Of a run in another place nobody here can ask whether it lives, and its lock says nothing where locks
  # end at the kernel: NFS without locks, virtiofs, gVisor. So each run writes a file now and then, and by
  # its age others know that somebody is there.
  #
  # Ages are told by the clock of the file system alone, as differences between what two runs have
  # written to it. They decide how long the files of a run are kept, and never who is signalled.

  alias Snakepit.{Native, Run}
  alias Snakepit.Ledger.RunDirectory

  @doc "Writes the file. Where that fails the next time may succeed."
  @spec give(Run.t()) :: :ok
  def give(run) do
    with {:ok, file} <- :file.open(RunDirectory.alive(run.directory), [:write, :raw]) do
      # A change of length is a change on every file system.
      :file.write(file, "alive\n")
      :file.close(file)
    end

    :ok
  end

  @doc "How many seconds before the last one of `run` the last one in a directory was; `nil` if there is none."
  @spec age_s(Path.t(), Run.t()) :: integer() | nil
  def age_s(directory, run) do
    with then when then != nil <- latest(directory),
         do: max((latest(run.directory) || then) - then, 0)
  end

  # Whatever is written there is a sign of life.
  defp latest(directory) do
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
