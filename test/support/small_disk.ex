defmodule Snakepit.Test.SmallDisk do
  @moduledoc """
  For second BEAMs whose data directory is on a file system of its own, which only they see.
  """

  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.Test.Workers

  @page 4096

  @doc "Starts Snakepit again with these settings. Returns `:started`, or the reason as text."
  def start_again(config) do
    Application.stop(:snakepit)
    Application.put_all_env(snakepit: config)

    case Application.ensure_all_started(:snakepit) do
      {:ok, _applications} -> :started
      {:error, reason} -> inspect(reason, limit: :infinity, printable_limit: :infinity)
    end
  end

  @doc "Starts a worker. Returns its pid, or what is known of the error."
  def start_worker(id, cmd) do
    case Workers.start(id, cmd) do
      {:ok, child} -> {:ok, child.os_pid}
      {:error, error} -> {:error, error.operation, error.reason, Exception.message(error)}
    end
  end

  @doc """
  Reserves workers until that fails, when the last page that the journal has is full. Their ids are no longer than those
  that are tried afterwards: what did not fit then does not fit now.
  """
  def fill_journal(letter) do
    Enum.find_value(1..10_000, :never, fn number ->
      with {:error, error} <- ProcessRegistry.reserve_worker("#{letter}#{number}"),
           do: {error.operation, error.reason},
           else: (:ok -> nil)
    end)
  end

  @doc "Fills the file system, but for so many pages."
  def fill(directory, pages) do
    path = filler(directory)
    System.cmd("dd", ["if=/dev/zero", "of=#{path}", "bs=#{@page}"], stderr_to_stdout: true)
    size = File.stat!(path).size - pages * @page
    {_output, 0} = System.cmd("truncate", ["-s", "#{size}", path])
    :ok
  end

  @doc "Makes room again."
  def empty(directory), do: File.rm!(filler(directory))

  defp filler(directory), do: Path.join(directory, "filler")

  @doc "Returns runs that are neither closed nor the current one, with their files."
  def unclosed(directory) do
    for id <- File.ls!(directory),
        id not in ["instance", Snakepit.run_id()],
        files = File.ls!(Path.join(directory, id)),
        "history" not in files,
        do: {id, files}
  end

  @doc "Has the file system meet an error, after which it is read-only."
  def fail(directory) do
    [device] =
      for line <- File.stream!("/proc/self/mounts"),
          [device, ^directory | _] <- [String.split(line)],
          do: Path.basename(device)

    File.write!("/sys/fs/ext4/#{device}/trigger_fs_error", "1")
  end
end
