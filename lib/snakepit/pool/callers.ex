defmodule Snakepit.Pool.Callers do
  @moduledoc false

  # The callers that wait for a worker, in the order in which they came. Each is known by the monitor that the
  # pool has on it. When its time is up the pool gets `{:give_up, monitor}`.

  # Those that have given up are missing in the map, and passed over in the queue.
  defstruct queue: :queue.new(), waiting: %{}

  @type t :: %__MODULE__{}

  @doc "Returns how many callers wait."
  def count(%__MODULE__{waiting: waiting}), do: map_size(waiting)

  @doc "Puts a caller at the end."
  def add(%__MODULE__{} = callers, {pid, _tag} = from, timeout) do
    monitor = Process.monitor(pid)
    timer = if timeout != :infinity, do: Process.send_after(self(), {:give_up, monitor}, timeout)

    %{
      callers
      | queue: :queue.in(monitor, callers.queue),
        waiting: Map.put(callers.waiting, monitor, {from, timer})
    }
  end

  @doc "Takes the first one out. Returns `:none` if there is none."
  def next(%__MODULE__{} = callers) do
    case :queue.out(callers.queue) do
      {:empty, _queue} ->
        :none

      {{:value, monitor}, queue} ->
        case Map.pop(callers.waiting, monitor) do
          {nil, _waiting} ->
            next(%{callers | queue: queue})

          {{from, timer}, waiting} ->
            if timer, do: Process.cancel_timer(timer)
            {monitor, from, %{callers | queue: queue, waiting: waiting}}
        end
    end
  end

  @doc "Removes a caller. Returns whom to answer, if it waits."
  def drop(%__MODULE__{} = callers, monitor) do
    Process.demonitor(monitor, [:flush])
    {entry, waiting} = Map.pop(callers.waiting, monitor)
    {with({from, _timer} <- entry, do: from), %{callers | waiting: waiting}}
  end
end
