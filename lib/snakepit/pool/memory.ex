defmodule Snakepit.Pool.Memory do
  @moduledoc false

  # Measures what workers use, in a process of its own: it reads files of the kernel, several for each worker.

  alias Snakepit.Pool.ProcessRegistry

  @doc """
  Measures workers: a slot's number, and the id and pid of its worker. The caller hears `{Snakepit.Pool.Memory, pid, measures}`,
  with a triple of number, worker and bytes for each whose process is there; it is linked to that pid.
  """
  @spec measure([{pos_integer(), String.t(), pid()}]) :: pid()
  def measure(workers) do
    pool = self()

    spawn_link(fn ->
      measures =
        for {number, id, worker} <- workers, {:ok, bytes} <- [of(id)], do: {number, worker, bytes}

      send(pool, {__MODULE__, self(), measures})
    end)
  end

  # Of the process and all that is below it. Asked of the registry and not of the worker, which may be busy.
  defp of(id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, %{os_pid: os_pid}} -> {:ok, tree(os_pid)}
      {:error, _none} -> :error
    end
  end

  defp tree(os_pid), do: resident(os_pid) + Enum.sum(Enum.map(children(os_pid), &tree/1))

  defp resident(os_pid) do
    with {:ok, text} <- File.read("/proc/#{os_pid}/status"),
         [_line, kib] <- Regex.run(~r/^VmRSS:\s+(\d+) kB$/m, text) do
      String.to_integer(kib) * 1024
    else
      _gone_or_without_memory -> 0
    end
  end

  defp children(os_pid) do
    for thread <- Path.wildcard("/proc/#{os_pid}/task/*"),
        {:ok, text} <- [File.read(Path.join(thread, "children"))],
        child <- String.split(text),
        do: String.to_integer(child)
  end
end
