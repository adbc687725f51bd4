defmodule Snakepit.Metrics.Recorder do
  @moduledoc false

  # Counts the events of `Snakepit.Telemetry`, in the process that emits them. Those that are not counted pass.

  require Logger

  import Snakepit.Metrics.Catalogue, only: [bucket: 2, place: 1, place: 2, sum: 1]

  alias Snakepit.Error
  alias Snakepit.Metrics.{Catalogue, Labels, Pools, Store, Usage}

  @doc "Counts an event, if anything is counted."
  @spec record([atom()], map(), map()) :: :ok
  def record(event, measurements, metadata) do
    case Store.current() do
      nil -> :ok
      store -> record(store, event, measurements, metadata)
    end
  end

  defp record(store, [:snakepit | event], measurements, metadata) do
    count(event, store, measurements, metadata)
    :ok
  rescue
    # Whoever emits an event goes on in any case.
    error ->
      # The table goes with the application, or with its owner.
      if Store.current() == store,
        do: Logger.error("Snakepit cannot count #{inspect(event)}: #{Exception.message(error)}")

      :ok
  end

  defp count([:heartbeat, :ping_sent], store, _measurements, %{worker_id: id}),
    do: add(group(store, id), place(:heartbeat_pings))

  defp count([:heartbeat, :pong_received], store, %{latency_ms: ms}, %{worker_id: id}) do
    row = group(store, id)
    add(row, place(:heartbeat_pongs))
    observe(row, :heartbeat_latency, ms * 1_000)
  end

  defp count([:heartbeat, :timeout], store, _measurements, %{worker_id: id}),
    do: add(group(store, id), place(:heartbeat_misses))

  # An application that stops starts nothing, and that is no failure.
  defp count([:launch, :stop], _store, _measurements, %{error: %Error{reason: :shutting_down}}),
    do: :ok

  defp count([:launch, :stop], store, _measurements, %{error: _error, worker_id: id}) do
    row = group(store, id)
    add(row, place(:process_start_failures, :launch))
    add(row, Catalogue.failed())
  end

  defp count([:launch, :stop], store, %{duration: duration}, %{worker_id: id}),
    do: observe(group(store, id), :launch_duration, us(duration))

  defp count([:process, :started], store, %{startup_duration_ms: ms}, %{worker_id: id}) do
    row = group(store, id)
    add(row, place(:process_starts))
    observe(row, :process_start_duration, ms * 1_000)
    if failed_before?(row), do: add(row, place(:process_restarts, :failure))
  end

  defp count([:process, :restarted], store, _measurements, %{worker_id: id}),
    do: add(group(store, id), place(:process_restarts, :guardian_down))

  defp count([:process, :terminated], store, %{uptime_ms: ms} = measurements, metadata) do
    row = group(store, metadata.worker_id)
    add_cpu(store, measurements, metadata)
    why = Labels.ended(metadata.reason)
    add(row, place(:process_ends, why))
    observe(row, :process_lifetime, ms * 1_000)
    if why == :not_ready, do: add(row, place(:process_start_failures, :ready))
    if why not in [:normal, :shutdown], do: add(row, Catalogue.failed())

    with {:survivors, os_pids} <- metadata.reason,
         do: add(store.run, place(:survivors), length(os_pids))
  end

  defp count([:process, :cleanup_completed], store, _measurements, metadata) do
    row = group(store, metadata.worker_id)
    add(row, place(:process_cleanups, metadata.cleanup_method))
    unless metadata.success, do: add(row, place(:process_cleanup_failures))
  end

  defp count([:shutdown, :stop], store, %{duration: duration}, %{worker_id: id}),
    do: observe(group(store, id), :process_cleanup_duration, us(duration))

  defp count([:checkout, last], store, %{duration: duration}, metadata)
       when last in [:stop, :exception] do
    row = Store.row(store, :pool, Pools.label(store, metadata.pool))
    add(row, place(:pool_checkouts, Labels.lent(metadata)))
    observe(row, :pool_checkout_wait, us(duration))
  end

  defp count([:command, last], store, %{duration: duration}, metadata)
       when last in [:stop, :exception] do
    add(store.run, place(:commands, Labels.result(metadata)))
    observe(store.run, :command_duration, us(duration))
  end

  defp count([:cleanup, :success], store, %{duration_ms: ms}, _metadata) do
    add(store.run, place(:cleanups, :success))
    observe(store.run, :cleanup_duration, ms * 1_000)
  end

  defp count([:cleanup, :timeout], store, %{duration_ms: ms}, metadata) do
    add(store.run, place(:cleanups, :timeout))
    add(store.run, place(:survivors), length(metadata.os_pids))
    observe(store.run, :cleanup_duration, ms * 1_000)
  end

  defp count([:run, :reaped], store, _measurements, metadata) do
    add(store.run, place(:runs_reaped, metadata.terminated_by || :nobody))
    add(store.run, place(:ambiguous_processes), metadata.ambiguous)
    # Those that a guardian has ended are in its own figures.
    unless metadata.terminated_by == :guardian,
      do: add(store.run, place(:orphans, :start), metadata.found)
  end

  defp count([:reap, last], store, %{duration: duration}, _metadata)
       when last in [:stop, :exception],
       do: observe(store.run, :reap_duration, us(duration))

  defp count([:audit, :completed], store, measurements, _metadata) do
    add(store.run, place(:audits))
    add(store.run, place(:orphans, :auditor), measurements.orphans)
    add(store.run, place(:stale_entries), measurements.stale_entries)
    observe(store.run, :audit_duration, measurements.duration_ms * 1_000)
  end

  defp count([:watchdog, :started], store, _measurements, _metadata),
    do: add(store.run, place(:guardian_starts))

  defp count([:watchdog, :silent], store, _measurements, %{action: action}),
    do: add(store.run, place(:guardian_silences, action))

  defp count([:watchdog, :beam_death_detected], store, _measurements, _metadata),
    do: add(store.run, place(:watchdog_activations))

  defp count([:watchdog, :process_terminated], store, _measurements, %{method: method}),
    do: add(store.run, place(:watchdog_terminations, method))

  # The starts of spans, and what others count better.
  defp count(_event, _store, _measurements, _metadata), do: :ok

  # Of a process that nobody could wait for it is not known.
  defp add_cpu(store, %{user_us: user, system_us: system}, %{worker_id: id, os_pid: os_pid}),
    do: Usage.add_last(store, Store.group(store, id), id, os_pid, user + system)

  defp add_cpu(_store, _measurements, _metadata), do: :ok

  # A start in a group in which a process has failed, and no start has followed yet, takes its place.
  defp failed_before?(row) do
    failed = Catalogue.failed()

    cond do
      :atomics.get(row, failed) <= 0 -> false
      :atomics.sub_get(row, failed, 1) >= 0 -> true
      # Another start was quicker.
      true -> :atomics.add(row, failed, 1) && false
    end
  end

  defp group(store, worker_id), do: Store.row(store, :group, Store.group(store, worker_id))

  defp add(row, place, count \\ 1), do: :atomics.add(row, place, count)

  defp observe(row, histogram, us) do
    first = place(histogram)
    :atomics.add(row, first + bucket(histogram, us), 1)
    :atomics.add(row, first + sum(histogram), us)
  end

  defp us(duration), do: System.convert_time_unit(duration, :native, :microsecond)
end
