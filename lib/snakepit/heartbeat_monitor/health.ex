defmodule Snakepit.HeartbeatMonitor.Health do
  @moduledoc """
  How a worker's process answers heartbeats.

    * `:status` - `:unknown` before the first pong, `:unhealthy` after a miss, otherwise `:healthy`
    * `:missed_heartbeats` - misses in a row
    * `:pings_sent`, `:pongs_received` - since the monitor started
    * `:last_pong_ms_ago` - how long ago the last pong was sent, or `nil`
    * `:last_latency_ms` - how long the process took to answer a ping, or `nil`

  """

  @enforce_keys [:status]
  defstruct [
    :status,
    :last_pong_ms_ago,
    :last_latency_ms,
    missed_heartbeats: 0,
    pings_sent: 0,
    pongs_received: 0
  ]

  @type t :: %__MODULE__{
          status: :healthy | :unhealthy | :unknown,
          missed_heartbeats: non_neg_integer(),
          pings_sent: non_neg_integer(),
          pongs_received: non_neg_integer(),
          last_pong_ms_ago: integer() | nil,
          last_latency_ms: non_neg_integer() | nil
        }
end
