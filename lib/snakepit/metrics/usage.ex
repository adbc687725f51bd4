defmodule Snakepit.Metrics.Usage do
  @moduledoc false

  # CPU time and memory of workers' processes, as the metrics need them.
  #
  # The CPU time of a group only grows, though workers come and go: what each worker has used since the last sample
  # is added to its group's. Samples that are taken at one time do not add it twice, as only one of them can
  # replace the last figure of a worker.

  alias Snakepit.Metrics.{Catalogue, Store}

  @typedoc "What a process, or a worker's tree, uses."
  @type t :: %{
          cpu_us: non_neg_integer(),
          memory_bytes: non_neg_integer(),
          processes: pos_integer()
        }

  @none %{cpu_us: 0, memory_bytes: 0, processes: 0}

  # The kernel shows times in these, whatever its own clock, on all that Snakepit runs on.
  @us_per_tick 10_000
  @page_bytes 4_096

  @doc "Returns what a worker's tree uses; nothing if it is gone."
  @spec of_worker(%{os_pid: pos_integer()}) :: t()
  def of_worker(%{os_pid: os_pid}) do
    with {:error, _gone} <- of_process(os_pid), do: @none, else: ({:ok, usage} -> usage)
  end

  @doc "Returns what a process uses."
  @spec of_process(pos_integer()) :: {:ok, t()} | {:error, File.posix() | :invalid}
  def of_process(os_pid) do
    with {:ok, stat} <- File.read("/proc/#{os_pid}/stat"),
         # Behind the name, which may contain anything.
         [_all, fields] <- Regex.run(~r/.*\) (.*)/s, stat),
         fields = String.split(fields),
         [user, system] <- for(n <- [11, 12], do: String.to_integer(Enum.at(fields, n))) do
      pages = String.to_integer(Enum.at(fields, 21))

      {:ok,
       %{cpu_us: (user + system) * @us_per_tick, memory_bytes: pages * @page_bytes, processes: 1}}
    else
      {:error, reason} -> {:error, reason}
      _other -> {:error, :invalid}
    end
  end

  @doc "Adds what workers have used since the last sample to their groups' CPU time."
  @spec add_cpu(Store.t(), [{String.t(), map(), t()}]) :: :ok
  def add_cpu(%{table: table} = store, used) do
    for {group, info, %{cpu_us: now}} <- used do
      key = {:cpu, info.identity}

      case :ets.lookup(table, key) do
        [{_key, last}] when now > last ->
          if replace(table, key, last, now), do: add(store, group, now - last)

        [_as_before] ->
          :ok

        [] ->
          if :ets.insert_new(table, {key, now}), do: add(store, group, now)
      end
    end

    forget(table, for({_group, info, _usage} <- used, into: MapSet.new(), do: info.identity))
  end

  defp replace(table, key, last, now),
    do: :ets.select_replace(table, [{{key, last}, [], [{{{:const, key}, now}}]}]) == 1

  defp add(store, group, us),
    do: :atomics.add(Store.row(store, :group, group), Catalogue.place(:worker_cpu), us)

  defp forget(table, living) do
    for [identity] <- :ets.match(table, {{:cpu, :"$1"}, :_}),
        not MapSet.member?(living, identity),
        do: :ets.delete(table, {:cpu, identity})

    :ok
  end
end
