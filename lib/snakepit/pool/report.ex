defmodule Snakepit.Pool.Report do
  @moduledoc false

  # What `Snakepit.Pool.info/1` tells of a pool.

  alias Snakepit.Pool.{Callers, ProcessRegistry}

  @doc "Of the state of `Snakepit.Pool.Server`."
  @spec new(map()) :: map()
  def new(pool) do
    slots = pool.slots |> Map.values() |> Enum.sort_by(& &1.number)
    counts = Enum.frequencies_by(slots, & &1.state)

    for(
      key <- [:idle, :busy, :starting, :waiting, :stopping],
      into: %{},
      do: {key, Map.get(counts, key, 0)}
    )
    |> Map.merge(%{
      size: pool.size,
      queued: Callers.count(pool.callers),
      workers: Enum.map(slots, &describe/1),
      last_error: pool.last_error
    })
  end

  defp describe(slot) do
    slot
    |> Map.take([:id, :pid, :state, :restarts, :last_error])
    |> Map.put(:os_pid, os_pid(slot.id))
  end

  defp os_pid(id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, info} -> info.os_pid
      {:error, _none} -> nil
    end
  end
end
