defmodule Snakepit.HeartbeatMonitor.Target do
  @moduledoc false

  # A worker whose process is pinged: its monitor, its failure detector, and the lifeline or pinger that
  # reaches it.

  alias Snakepit.HeartbeatMonitor.FailureDetector

  @enforce_keys [:monitor, :worker, :worker_id, :socket, :detector]
  # `rest` is the beginning of a line that has arrived.
  defstruct [:monitor, :worker, :worker_id, :socket, :detector, rest: ""]

  @type t :: %__MODULE__{
          monitor: pid(),
          worker: pid(),
          worker_id: String.t() | nil,
          socket: :socket.socket() | nil,
          detector: FailureDetector.t(),
          rest: binary()
        }
end
