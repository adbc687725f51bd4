defmodule Snakepit.Pool.Memory do
  @moduledoc false

  # Measures what workers use, in a process of its own: the guardian and the kernel are asked about each of them.

  alias Snakepit.Metrics.Usage
  alias Snakepit.Pool.ProcessRegistry

  @doc """
  Measures workers: a slot's number, and the id and pid of its worker. The caller hears `{Snakepit.Pool.Memory, pid, measures}`,
  with a triple of number, worker and bytes for each whose process is there; it is linked to that pid.
  """
  @spec measure([{pos_integer(), String.t(), pid()}]) :: pid()
  def measure(workers) do
    pool = self()
    spawn_link(fn -> send(pool, {__MODULE__, self(), bytes(workers)}) end)
  end

  # Asked of the registry and not of the workers, which may be busy.
  defp bytes(workers) do
    registered =
      for {_number, id, _worker} <- workers,
          {:ok, info} <- [ProcessRegistry.get_worker_info(id)],
          do: {id, info}

    used =
      for {id, _info, %{memory_bytes: bytes}} <- Usage.of_workers(registered), do: {id, bytes}

    used = Map.new(used)
    for {number, id, worker} <- workers, bytes = used[id], do: {number, worker, bytes}
  end
end
