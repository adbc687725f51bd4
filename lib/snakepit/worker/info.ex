defmodule Snakepit.Worker.Info do
  @moduledoc """
  What `Snakepit.Worker.info/1` returns: a worker and its process at one moment.

    * `:id` - by which it is recorded
    * `:os_pid` - the pid of its OS process
    * `:cmd` - the program and its arguments
    * `:uptime_ms` - how long the process has run
    * `:heartbeat` - a `Snakepit.HeartbeatMonitor.Health`, by its `:watchdog` if it has no other heartbeats; or `nil`
    * `:notify` - a `Snakepit.Worker.Notify.Status`: what the process has said of itself; `nil` without `ready: :notify`
      and `:watchdog`
    * `:usage` - a `Snakepit.Usage`: what the process and everything that it has started use; `nil` if they have just
      ended

  """

  alias Snakepit.HeartbeatMonitor.Health
  alias Snakepit.Usage
  alias Snakepit.Worker.Notify.Status

  @enforce_keys [:id, :os_pid, :cmd, :uptime_ms]
  defstruct [:id, :os_pid, :cmd, :uptime_ms, :heartbeat, :notify, :usage]

  @type t :: %__MODULE__{
          id: String.t(),
          os_pid: pos_integer(),
          cmd: [String.t()],
          uptime_ms: non_neg_integer(),
          heartbeat: Health.t() | nil,
          notify: Status.t() | nil,
          usage: Usage.t() | nil
        }
end
