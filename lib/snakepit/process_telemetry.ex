defmodule Snakepit.ProcessTelemetry do
  @moduledoc """
  Logs the most important events of `Snakepit.Telemetry`.

      Snakepit.ProcessTelemetry.attach_default_handlers()

  | event | level |
  |---|---|
  | a worker's process is ready, or ended as expected | `:info` |
  | a heartbeat is missing | `:warning` |
  | a dead run has been reaped | `:warning` |
  | a worker could not clean up after itself | `:error` |
  | processes survived the end of everything | `:error` |

  A worker logs by itself when its process fails; that is not repeated.
  """

  require Logger

  alias Snakepit.Error
  alias Snakepit.Worker.Exit

  @handler "snakepit-default-handlers"

  @events [
    [:snakepit, :process, :started],
    [:snakepit, :process, :terminated],
    [:snakepit, :process, :cleanup_completed],
    [:snakepit, :heartbeat, :timeout],
    [:snakepit, :run, :reaped],
    [:snakepit, :cleanup, :timeout]
  ]

  @doc "Attaches the handlers. `{:error, :no_telemetry}` if the host application does not have it."
  @spec attach_default_handlers() :: :ok | {:error, :already_exists | :no_telemetry}
  def attach_default_handlers do
    # Not a dependency, so not called by name.
    if Code.ensure_loaded?(:telemetry),
      do: apply(:telemetry, :attach_many, [@handler, @events, &__MODULE__.handle/4, nil]),
      else: {:error, :no_telemetry}
  end

  @doc "Detaches the handlers."
  @spec detach_default_handlers() :: :ok | {:error, :not_found | :no_telemetry}
  def detach_default_handlers do
    if Code.ensure_loaded?(:telemetry),
      do: apply(:telemetry, :detach, [@handler]),
      else: {:error, :no_telemetry}
  end

  @doc false
  def handle([:snakepit, :process, :started], measurements, metadata, _config) do
    Logger.info(
      "Snakepit worker #{metadata.worker_id} is ready after " <>
        "#{measurements.startup_duration_ms} ms (OS process #{metadata.os_pid})"
    )
  end

  def handle([:snakepit, :process, :terminated], measurements, metadata, _config) do
    if Exit.orderly?(metadata.reason) do
      Logger.info(
        "Snakepit worker #{metadata.worker_id} ended after #{measurements.uptime_ms} ms " <>
          "(OS process #{metadata.os_pid})"
      )
    end
  end

  def handle([:snakepit, :process, :cleanup_completed], _measurements, metadata, _config) do
    unless metadata.success,
      do:
        Logger.error(
          "Snakepit worker #{metadata.worker_id} has ended, but not all of its processes have"
        )
  end

  def handle([:snakepit, :heartbeat, :timeout], measurements, metadata, _config) do
    Logger.warning(
      "Snakepit worker #{metadata.worker_id} answered no heartbeat for " <>
        "#{metadata.timeout_threshold_ms} ms, #{measurements.missed_count} in a row"
    )
  end

  def handle([:snakepit, :run, :reaped], _measurements, metadata, _config) do
    Logger.warning(
      "Snakepit reaped run #{metadata.run_id}: " <>
        "#{metadata.found} processes found, #{metadata.killed} killed"
    )
  end

  def handle([:snakepit, :cleanup, :timeout], _measurements, metadata, _config),
    do: Logger.error("Snakepit cannot end these processes: #{Error.pids(metadata.os_pids)}")
end
