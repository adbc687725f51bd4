defmodule Snakepit.Metrics.Definitions do
  @moduledoc false

  # The metrics as definitions of `Telemetry.Metrics`. It is no dependency, and not called by name.
  #
  # A metric of `Telemetry.Metrics` is of one event. What several events count, or what happens before anybody can
  # attach to an event, is not here.

  alias Snakepit.Error
  alias Snakepit.Metrics.{Catalogue, Labels, Pools, Store}

  @telemetry_metrics Telemetry.Metrics

  # What each metric is made of: the event, and of counters that are sums and of histograms the measurement too.
  @counted [
    process_starts: [:process, :started],
    process_start_failures: [:launch, :stop],
    process_restarts: [:process, :restarted],
    process_ends: [:process, :terminated],
    process_cleanups: [:process, :cleanup_completed],
    heartbeat_pings: [:heartbeat, :ping_sent],
    heartbeat_pongs: [:heartbeat, :pong_received],
    heartbeat_misses: [:heartbeat, :timeout],
    pool_checkouts: [:checkout, :stop],
    commands: [:command, :stop],
    audits: [:audit, :completed],
    guardian_silences: [:watchdog, :silent]
  ]

  @summed [
    orphans: {[:audit, :completed], :orphans},
    stale_entries: {[:audit, :completed], :stale_entries}
  ]

  @distributed [
    launch_duration: {[:launch, :stop], :duration, :native},
    process_start_duration: {[:process, :started], :startup_duration_ms, :millisecond},
    process_cleanup_duration: {[:shutdown, :stop], :duration, :native},
    process_lifetime: {[:process, :terminated], :uptime_ms, :millisecond},
    heartbeat_latency: {[:heartbeat, :pong_received], :latency_ms, :millisecond},
    pool_checkout_wait: {[:checkout, :stop], :duration, :native},
    command_duration: {[:command, :stop], :duration, :native},
    audit_duration: {[:audit, :completed], :duration_ms, :millisecond}
  ]

  @doc "Returns all definitions. Raises `Snakepit.Error` if there is no `Telemetry.Metrics`."
  @spec all() :: [struct()]
  def all do
    unless Code.ensure_loaded?(@telemetry_metrics) do
      raise Error,
        operation: :definitions,
        reason: :no_telemetry_metrics,
        detail: "add {:telemetry_metrics, \"~> 1.0\"} to the dependencies of your application"
    end

    Enum.flat_map(Catalogue.all(), &definition/1)
  end

  defp definition(%{scope: :sampled, type: :info}), do: []

  defp definition(%{scope: :sampled, key: key} = family),
    do: [make(:last_value, family, [:sampled, key], measurement: :value)]

  defp definition(%{key: key} = family) do
    cond do
      event = @counted[key] ->
        [make(:counter, family, event, measurement: :count)]

      of = @summed[key] ->
        {event, measurement} = of
        [make(:sum, family, event, measurement: measurement)]

      of = @distributed[key] ->
        {event, measurement, unit} = of
        buckets = [reporter_options: [buckets: family.buckets]]

        [
          make(
            :distribution,
            family,
            event,
            [measurement: measurement, unit: {unit, :second}] ++ buckets
          )
        ]

      true ->
        []
    end
  end

  defp make(kind, family, event, options) do
    name = if family.type == :counter, do: family.name <> "_total", else: family.name

    common = [
      event_name: [:snakepit | event],
      description: family.help,
      tags: family.labels,
      tag_values: &labels(family, &1)
    ]

    apply(@telemetry_metrics, kind, [
      [:snakepit, String.to_atom(without_prefix(name))],
      common ++ keep(family.key) ++ options
    ])
  end

  # The reporter puts it together again.
  defp without_prefix("snakepit_" <> name), do: name

  defp keep(:process_start_failures),
    do: [keep: &match?(%{error: %Error{reason: reason}} when reason != :shutting_down, &1)]

  defp keep(:launch_duration), do: [keep: &(not is_map_key(&1, :error))]
  defp keep(_key), do: []

  # Of what is sampled they are in the event.
  defp labels(%{scope: :sampled}, metadata), do: metadata
  defp labels(family, metadata), do: Map.merge(scope(family, metadata), own(family.key, metadata))

  defp scope(%{scope: :run}, _metadata), do: %{}

  # Bounded where the metrics are on.
  defp scope(%{scope: :group}, %{worker_id: id}) do
    store = Store.current()
    %{group: if(store, do: Labels.group(store, id), else: Store.default_group(id))}
  end

  defp scope(%{scope: :pool}, %{pool: pool}) do
    store = Store.current()
    %{pool: if(store, do: Labels.pool(store, pool), else: Pools.name(pool))}
  end

  defp own(:process_ends, metadata), do: %{reason: Labels.ended(metadata.reason)}
  defp own(:process_start_failures, _metadata), do: %{step: :launch}
  defp own(:process_restarts, metadata), do: %{reason: metadata.reason}
  defp own(:process_cleanups, metadata), do: %{method: metadata.cleanup_method}
  defp own(:pool_checkouts, metadata), do: %{result: Labels.lent(metadata)}
  defp own(:commands, metadata), do: %{result: Labels.result(metadata)}
  defp own(:orphans, _metadata), do: %{found_by: :auditor}
  defp own(:guardian_silences, metadata), do: %{action: metadata.action}
  defp own(_key, _metadata), do: %{}
end
