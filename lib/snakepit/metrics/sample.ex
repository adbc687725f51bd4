defmodule Snakepit.Metrics.Sample do
  @moduledoc false

  # What is looked up when somebody asks: how many workers there are and what they use, pools, and the guardian.

  alias Snakepit.{Guardian, Run}
  alias Snakepit.Metrics.{Catalogue, Pools, Store, Usage}
  alias Snakepit.Pool.ProcessRegistry

  @version Mix.Project.config()[:version]
  # Of one that is being started again it may be late.
  @answer_ms 1_000
  @states [:idle, :busy, :starting, :stopping, :waiting]

  @typedoc "A value with those of its labels."
  @type value :: {[String.t()], number()}

  @doc """
  Returns the values of each metric that is sampled, and adds the CPU time since the last sample to that of the
  groups. Of an application that is not started, or has stopped, there are none.
  """
  @spec take(Store.t()) :: %{atom() => [value()]}
  def take(store) do
    case Run.current() do
      nil ->
        %{}

      run ->
        Map.merge(workers(store), pools(store)) |> Map.merge(guardian()) |> Map.merge(run(run))
    end
  end

  defp workers(store) do
    active =
      for {_id, %{status: :active}} = worker <- ProcessRegistry.list_all_workers(), do: worker

    used =
      for {id, info, usage} <- Usage.of_workers(active),
          do: {Store.label(store, :group, Store.group(store, id)), id, info, usage}

    Usage.add_cpu(store, used)
    by_group = Enum.group_by(used, &elem(&1, 0), &elem(&1, 3))
    sums = fn fun -> for {group, usages} <- by_group, do: {[group], fun.(usages)} end

    %{
      workers: sums.(&length/1),
      worker_processes: sums.(&total(&1, :processes)),
      worker_memory: sums.(&total(&1, :memory_bytes))
    }
  end

  defp total(usages, key), do: usages |> Enum.map(&Map.fetch!(&1, key)) |> Enum.sum()

  defp pools(store) do
    # Of one name there may be several, on their way or without a name.
    by_label =
      store
      |> Pools.infos()
      |> Enum.group_by(fn {label, _info} -> Store.label(store, :pool, label) end, &elem(&1, 1))

    answered = for {label, infos} <- by_label, do: {label, Enum.reject(infos, &is_nil/1)}
    sum = fn infos, key -> infos |> Enum.map(&Map.fetch!(&1, key)) |> Enum.sum() end

    %{
      pool_up: for({label, infos} <- by_label, do: {[label], if(nil in infos, do: 0, else: 1)}),
      pool_size: for({label, [_ | _] = infos} <- answered, do: {[label], sum.(infos, :size)}),
      pool_queued: for({label, [_ | _] = infos} <- answered, do: {[label], sum.(infos, :queued)}),
      pool_workers:
        for(
          {label, [_ | _] = infos} <- answered,
          state <- @states,
          do: {[label, Atom.to_string(state)], sum.(infos, state)}
        )
    }
  end

  defp guardian do
    with server when server != nil <- Process.whereis(Guardian),
         os_pid = GenServer.call(server, :os_pid, @answer_ms),
         {:ok, usage} <- Usage.of_process(os_pid) do
      %{
        guardian_up: [{[], 1}],
        guardian_memory: [{[], usage.memory_bytes}],
        guardian_cpu: [{[], usage.cpu_us / 1_000_000}]
      }
    else
      _gone -> %{guardian_up: [{[], 0}]}
    end
  catch
    # It ends just now.
    :exit, _reason -> %{guardian_up: [{[], 0}]}
  end

  defp run(run) do
    began_ms = System.os_time(:millisecond) - (System.monotonic_time(:millisecond) - run.begun)
    %{run_start_time: [{[], began_ms / 1_000}], build: [{[@version, run.id], 1}]}
  end

  @doc "Returns the same as events: name without its first part, measurements, metadata."
  @spec events(Store.t()) :: [{[atom()], map(), map()}]
  def events(store) do
    taken = take(store)

    for %{scope: :sampled, type: type, key: key, labels: labels} <- Catalogue.all(),
        type != :info,
        {values, value} <- Map.get(taken, key, []) do
      {[:sampled, key], %{value: value}, labels |> Enum.zip(values) |> Map.new()}
    end
  end
end
