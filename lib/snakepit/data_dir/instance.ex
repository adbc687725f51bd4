defmodule Snakepit.DataDir.Instance do
  @moduledoc false

  # What keeps the processes of one data directory apart from all others. It is a property of the directory
  # and not of its path: two containers in one pid namespace may have the same path, each on a volume of
  # its own. A file in the directory holds it, with the version of the directory's layout:
  #
  #     snakepit 1 1000-6f0c…
  #
  # It is made once, whole, and synced, by whoever is first; all others read it. Damage does not keep anybody from
  # starting: then it is what the runs in the directory have noted.

  require Logger

  alias Snakepit.{DataDir, Native}
  alias Snakepit.Ledger.{Journal, Table}

  @file_name "instance"
  @format 1
  @max_bytes 256
  @made_here ~r/\A[0-9]+-[0-9a-f]{32}\z/
  # What it was before there was a file.
  @former ~r/\A[0-9a-f]{16}\z/

  @doc "Returns the instance of a directory, and makes one if there is none. Raises `ArgumentError`."
  @spec fetch!(Path.t()) :: String.t()
  def fetch!(directory) do
    if read(directory) == {:error, :enoent}, do: create!(directory)

    case read(directory) do
      {:ok, text} -> parse!(text, directory) || repair!(directory)
      {:error, :efbig} -> repair!(directory)
      {:error, reason} -> DataDir.refuse!(path(directory), "cannot be read: #{explain(reason)}")
    end
  end

  @doc "Returns whether a directory has an instance that is this user's."
  @spec known?(Path.t()) :: boolean()
  def known?(directory), do: match?({:ok, _text}, read(directory))

  @doc "Takes the rights of others away from its file."
  @spec close(Path.t()) :: {:ok, {}} | Native.error()
  def close(directory) do
    with {:error, {:enoent, _os_pid}} <- Native.path_close(path(directory)), do: {:ok, {}}
  end

  defp read(directory) do
    case Native.file_read(path(directory), @max_bytes) do
      {:ok, text} -> {:ok, text}
      {:error, {reason, _os_pid}} -> {:error, reason}
    end
  end

  defp explain(:eperm), do: "it is another user's, or others may write to it"
  defp explain(reason), do: DataDir.why(reason)

  # Nothing if it is damaged. A line that was cut has no end, and one without its last digits is too short: it
  # must not be taken for another instance, of which the runs in the directory are not.
  defp parse!(text, directory) do
    with [line, _rest] <- String.split(text, "\n", parts: 2),
         ["snakepit", format | rest] <- String.split(line, " "),
         {format, ""} <- Integer.parse(format) do
      instance!(format, rest, directory)
    else
      _damaged -> nil
    end
  end

  defp instance!(format, _rest, directory) when format > @format do
    DataDir.refuse!(
      directory,
      "was written by a newer Snakepit (layout #{format}, this one knows #{@format}): " <>
        "use that version, or another directory"
    )
  end

  defp instance!(@format, [instance], _directory),
    do: if(instance =~ @made_here or instance =~ @former, do: instance)

  defp instance!(_format, _rest, _directory), do: nil

  # Several may come to this at once, and must come to the same: so nothing in it is random, and it does
  # not matter who renames last.
  defp repair!(directory) do
    # Order: the runs, then the file again. A run that another start has reaped meanwhile says nothing any more,
    # but that start had repaired the file before.
    instance = inherited!(directory) || repaired!(directory) || of_inode(directory)
    Logger.warning("Snakepit: #{path(directory)} was corrupt, and is written again")
    temporary = "#{path(directory)}.#{Base.encode16(:crypto.strong_rand_bytes(8), case: :lower)}"
    write!(temporary, instance, directory)
    DataDir.written!(File.rename(temporary, path(directory)), directory)
    instance
  end

  defp repaired!(directory) do
    case read(directory) do
      {:ok, text} -> parse!(text, directory)
      {:error, _reason} -> nil
    end
  end

  defp create!(directory),
    do: write!(path(directory), inherited!(directory) || random(directory), directory)

  defp write!(path, instance, directory) do
    case Native.file_create(path, "snakepit #{@format} #{instance}\n") do
      {:ok, {}} -> :ok
      {:error, {reason, _os_pid}} -> DataDir.written!({:error, reason}, directory)
    end
  end

  defp random(directory) do
    {:ok, %{user: user}} = Native.directory_look(directory, true)
    "#{user}-#{Base.encode16(:crypto.strong_rand_bytes(16), case: :lower)}"
  end

  # For a directory without a run that has recorded its instance: no other directory has this inode.
  defp of_inode(directory) do
    {:ok, %{user: user}} = Native.directory_look(directory, true)
    %{inode: inode, major_device: device} = File.stat!(directory)
    hash = :crypto.hash(:sha256, "#{device}:#{inode}")
    "#{user}-#{hash |> binary_part(0, 16) |> Base.encode16(case: :lower)}"
  end

  # Runs that are not closed have recorded their instance. If the file was deleted, or the runs are older than it, the
  # instance that reaps them has to be the same.
  defp inherited!(directory) do
    noted =
      for {_id, run, _files} <- DataDir.open_runs!(directory),
          instance = noted(run),
          made_here?(instance, run),
          do: instance

    case Enum.uniq(noted) do
      [] ->
        nil

      [instance] ->
        instance

      several ->
        DataDir.refuse!(
          directory,
          "has runs of several instances (#{Enum.join(several, ", ")}): say config :snakepit, " <>
            "instance: with each of them once, and then without"
        )
    end
  end

  defp noted(run) do
    {entries, _ignored} = Journal.read!(run)

    table =
      case Table.read(run) do
        {:ok, contents} -> contents
        {:error, reason} -> DataDir.unreadable!(:instance, reason, Table.empty())
      end

    case Table.apply_entries(table, entries).run do
      %{instance: instance} when is_binary(instance) -> instance
      _unknown -> nil
    end
  end

  # An instance that was configured belongs to that configuration, and not to the directory.
  defp made_here?(instance, run),
    do: instance =~ @made_here or instance == of_path(Path.dirname(run))

  defp of_path(directory) do
    {:ok, %{user: user}} = Native.directory_look(directory, true)
    hash = :crypto.hash(:sha256, "#{user}:#{directory}")
    hash |> binary_part(0, 8) |> Base.encode16(case: :lower)
  end

  defp path(directory), do: Path.join(directory, @file_name)
end
