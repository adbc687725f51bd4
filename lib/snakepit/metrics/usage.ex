defmodule Snakepit.Metrics.Usage do
  @moduledoc false

  # CPU time and memory of workers' processes, as the metrics need them.
  #
  # The CPU time of a group only grows, though workers come and go: what each worker has used since the last sample
  # is added to its group's. Samples that are taken at one time do not add it twice, as only one of them can
  # replace the last figure of a worker. What it has used in the end comes with the event of its end.

  alias Snakepit.{Guardian, Usage}
  alias Snakepit.Metrics.{Catalogue, Store}

  @typedoc "What a process, or a worker's tree, uses."
  @type t :: %{
          cpu_us: non_neg_integer(),
          memory_bytes: non_neg_integer(),
          processes: non_neg_integer()
        }

  @none %{cpu_us: 0, memory_bytes: 0, processes: 0}

  # The guardian's, for all together: a scrape has to be over before the next one.
  @answer_ms 1_000
  # The kernel shows times in these, whatever its own clock, on all that Snakepit runs on.
  @us_per_tick 10_000
  @page_bytes 4_096

  @doc """
  Returns what the trees of workers use, which are given as the registry has them; nothing of those that are gone. The
  guardian is asked about all of them at once. What it does not answer in time is what can be seen without it.
  """
  @spec of_workers([{String.t(), map()}]) :: [{String.t(), map(), t()}]
  def of_workers(workers) do
    asked = for {id, info} <- workers, do: {id, info, ask(info)}
    deadline = now() + @answer_ms
    for {id, info, request} <- asked, do: {id, info, of_tree(info, answer(request, deadline))}
  end

  # A process that was recorded by hand has no number there.
  defp ask(%{child_id: id}) do
    if Process.whereis(Guardian), do: :gen_server.send_request(Guardian, {:roots, id})
  end

  defp ask(_info), do: nil

  defp answer(nil, _deadline), do: {[], {0, 0}}

  defp answer(request, deadline) do
    case :gen_server.receive_response(request, max(deadline - now(), 0)) do
      {:reply, {:ok, roots, ended}} -> {roots, ended}
      _gone_or_late -> {[], {0, 0}}
    end
  end

  defp of_tree(%{identity: nil}, _roots), do: @none

  defp of_tree(info, {roots, ended}) do
    case Usage.of_roots(info, roots, ended) do
      {:ok, usage} ->
        cpu_us = usage.user_us + usage.system_us
        %{cpu_us: cpu_us, memory_bytes: usage.rss_bytes, processes: usage.processes}

      {:error, _gone} ->
        @none
    end
  end

  @doc "Returns what a process alone uses."
  @spec of_process(pos_integer()) :: {:ok, t()} | {:error, File.posix() | :invalid}
  def of_process(os_pid) do
    with {:ok, stat} <- File.read("/proc/#{os_pid}/stat"),
         # Behind the name, which may contain anything.
         [_all, fields] <- Regex.run(~r/.*\) (.*)/s, stat) do
      [user, system, pages] =
        for n <- [11, 12, 21], do: fields |> String.split() |> Enum.at(n) |> String.to_integer()

      cpu_us = (user + system) * @us_per_tick
      {:ok, %{cpu_us: cpu_us, memory_bytes: pages * @page_bytes, processes: 1}}
    else
      {:error, reason} -> {:error, reason}
      nil -> {:error, :invalid}
    end
  end

  @doc "Adds what workers have used since the last sample to their groups' CPU time."
  @spec add_cpu(Store.t(), [{String.t(), String.t(), map(), t()}]) :: :ok
  def add_cpu(%{table: table} = store, used) do
    for {group, id, info, usage} <- used,
        do: add_cpu(store, group, key(id, info.os_pid), usage.cpu_us)

    living = for {_group, id, info, _usage} <- used, into: MapSet.new(), do: key(id, info.os_pid)

    for {{:cpu, _id, _os_pid} = key, _last} <- :ets.match_object(table, {{:cpu, :_, :_}, :_}),
        not MapSet.member?(living, key),
        do: :ets.delete(table, key)

    :ok
  end

  @doc "Adds what a worker has used when it has ended."
  @spec add_last(Store.t(), String.t(), String.t(), pos_integer(), non_neg_integer()) :: :ok
  def add_last(store, group, id, os_pid, cpu_us),
    do: add_cpu(store, group, key(id, os_pid), cpu_us)

  # Order: the figure of one that has ended stays until the next sample. One that is under way would take the worker
  # for a new one otherwise.
  defp add_cpu(%{table: table} = store, group, key, now) do
    case :ets.lookup(table, key) do
      [{_key, last}] when now > last ->
        if replace(table, key, last, now), do: add(store, group, now - last)

      [] when now > 0 ->
        if :ets.insert_new(table, {key, now}), do: add(store, group, now)

      _nothing_new ->
        :ok
    end

    :ok
  end

  defp key(id, os_pid), do: {:cpu, id, os_pid}

  defp replace(table, key, last, now),
    do: :ets.select_replace(table, [{{key, last}, [], [{{{:const, key}, now}}]}]) == 1

  defp add(store, group, us),
    do: :atomics.add(Store.row(store, :group, group), Catalogue.place(:worker_cpu), us)

  defp now, do: System.monotonic_time(:millisecond)
end
