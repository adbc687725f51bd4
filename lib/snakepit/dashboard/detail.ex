defmodule Snakepit.Dashboard.Detail do
  @moduledoc false

  # One worker: the tree of its processes, its heartbeats, what it has said of itself, and the end of its output.

  alias Snakepit.Dashboard.{Collector, Overview}
  alias Snakepit.{Usage, Worker}
  alias Snakepit.Pool.ProcessRegistry

  # A worker that starts its process again does not answer until it is done.
  @answer_ms 1_000
  @command_bytes 300

  @doc "Returns a worker; `nil` if there is none of that id."
  @spec fetch(String.t()) :: map() | nil
  def fetch(id) do
    case ProcessRegistry.get_worker_info(id) do
      {:ok, %{status: :active} = info} -> id |> of_active(info) |> Map.put(:id, id)
      {:ok, _reserved} -> %{id: id, state: "starting"}
      {:error, _none} -> nil
    end
  end

  defp of_active(id, info) do
    asked = ask(info)
    child = %{id: info[:child_id], os_pid: info.os_pid, identity: info.identity}

    %{
      state: "running",
      os_pid: info.os_pid,
      command: Enum.map(info.command, &shortened/1),
      beam_pid: inspect(info.owner),
      spawned_at: info.spawned_at,
      tree: tree(child),
      series: Collector.points(id),
      heartbeat: asked.info && heartbeat(asked.info.heartbeat),
      notify: asked.info && asked.info.notify && Map.from_struct(asked.info.notify),
      output: asked.output
    }
  end

  defp shortened(argument) when byte_size(argument) > @command_bytes,
    do: binary_part(argument, 0, @command_bytes) <> "…"

  defp shortened(argument), do: argument

  # By a process that can be left waiting. Only a worker understands the questions.
  defp ask(%{owner: owner}) do
    if worker?(owner) do
      task = Task.async(fn -> {Worker.info(owner), Worker.output_tail(owner)} end)

      case Task.yield(task, @answer_ms) || Task.shutdown(task, :brutal_kill) do
        {:ok, {info, output}} -> %{info: value(info), output: value(output)}
        _late -> %{info: nil, output: nil}
      end
    else
      %{info: nil, output: nil}
    end
  end

  @doc "Returns whether a BEAM process is a worker, which can be asked and told."
  @spec worker?(pid()) :: boolean()
  def worker?(pid) do
    case node(pid) == node() && Process.info(pid, :dictionary) do
      {:dictionary, dictionary} -> dictionary[:"$initial_call"] == {Worker.Server, :init, 1}
      _gone_or_elsewhere -> false
    end
  end

  defp value({:ok, value}), do: value
  defp value({:error, _gone}), do: nil

  defp heartbeat(nil), do: nil
  defp heartbeat(health), do: Map.from_struct(health)

  # The processes, each with those below it. What the guardian has adopted is at the top, beside the worker's own.
  defp tree(%{id: nil}), do: []

  defp tree(child) do
    case Usage.processes(child, false) do
      {:ok, rows} -> nest(rows)
      {:error, _gone} -> []
    end
  catch
    :exit, _guardian_down -> []
  end

  @doc """
  Returns rows as a tree: each with its `:children`.

      iex> rows = [%{os_pid: 10, parent: 1}, %{os_pid: 11, parent: 10}, %{os_pid: 12, parent: 1}]
      iex> Snakepit.Dashboard.Detail.nest(rows, & &1)
      [%{os_pid: 10, parent: 1, children: [%{os_pid: 11, parent: 10, children: []}]},
       %{os_pid: 12, parent: 1, children: []}]

  """
  @spec nest([map()], (map() -> map())) :: [map()]
  def nest(rows, shape \\ &shape/1) do
    there = MapSet.new(rows, & &1.os_pid)

    {tops, below} = Enum.split_with(rows, &(&1.parent == &1.os_pid or &1.parent not in there))

    below = Enum.group_by(below, & &1.parent)
    Enum.map(tops, &branch(&1, below, shape))
  end

  defp branch(row, below, shape) do
    children = for child <- Map.get(below, row.os_pid, []), do: branch(child, below, shape)
    row |> shape.() |> Map.put(:children, children)
  end

  defp shape(row) do
    row
    |> Map.take([:os_pid, :name, :alive, :threads, :descriptors, :read_bytes, :written_bytes])
    |> Map.merge(%{
      command: Overview.command(row.arguments),
      cpu_us: row.user_us + row.system_us,
      memory: row.rss_bytes
    })
  end
end
