defmodule Snakepit.HeartbeatMonitor.Events do
  @moduledoc false

  # What is told of heartbeats, whoever asks for them. `Snakepit.Telemetry` describes it.

  alias Snakepit.Telemetry

  def ping_sent(timestamp, metadata) do
    measurements = %{count: 1, timestamp: timestamp}
    Telemetry.execute([:snakepit, :heartbeat, :ping_sent], measurements, metadata)
  end

  def pong_received(latency_ms, metadata) do
    measurements = %{count: 1, latency_ms: latency_ms}
    Telemetry.execute([:snakepit, :heartbeat, :pong_received], measurements, metadata)
  end

  def timeout(missed, metadata) do
    measurements = %{count: 1, missed_count: missed}
    Telemetry.execute([:snakepit, :heartbeat, :timeout], measurements, metadata)
  end
end
