defmodule Snakepit.Cluster.Member.Number do
  @moduledoc false

  # What a member must not forget: the greatest token that it has granted, and the longest lease. On its disk before the
  # grant is sent. A member is known by the name of its node, so two nodes that share a data directory have a file each.

  alias Snakepit.{DataDir, Run}

  @type t :: %{number: non_neg_integer(), longest: non_neg_integer()}

  @doc "Returns what is stored; zeros if nothing is. Raises if it cannot be read, or is no such thing."
  @spec read!() :: t()
  def read! do
    case File.read(path()) do
      {:ok, text} -> parse!(text)
      {:error, :enoent} -> %{number: 0, longest: 0}
      {:error, reason} -> refuse!("cannot be read: #{DataDir.why(reason)}")
    end
  end

  defp parse!(text) do
    with ["snakepit-lease 1", number, longest, ""] <- String.split(text, "\n"),
         {number, ""} <- Integer.parse(number),
         {longest, ""} <- Integer.parse(longest) do
      %{number: number, longest: longest}
    else
      _damaged ->
        refuse!(
          "is damaged: stop the nodes that have leases, and remove it; tokens begin anew then"
        )
    end
  end

  @doc "Stores it. The disk has it when this returns `:ok`."
  @spec write(t()) :: :ok | {:error, atom()}
  def write(%{number: number, longest: longest}) do
    new = path() <> ".new"
    text = "snakepit-lease 1\n#{number}\n#{longest}\n"

    # Order: the content before the name, and the name before the answer.
    with :ok <- synced(new, [:write, :raw, :binary], &:file.write(&1, text)),
         :ok <- :file.rename(new, path()),
         do: synced(Path.dirname(path()), [:read, :raw, :directory], fn _directory -> :ok end)
  end

  defp synced(path, modes, write) do
    with {:ok, file} <- :file.open(path, modes) do
      try do
        with :ok <- write.(file), do: :file.sync(file)
      after
        :file.close(file)
      end
    end
  end

  defp path,
    do: Path.join(Run.current!().data_dir, "member-#{Base.url_encode64(to_string(node()))}")

  defp refuse!(why), do: DataDir.refuse!(path(), why)
end
