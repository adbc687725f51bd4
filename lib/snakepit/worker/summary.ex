defmodule Snakepit.Worker.Summary do
  @moduledoc """
  A worker in the list that `Snakepit.workers/0` returns.

    * `:id` - by which it is recorded
    * `:pid` - the BEAM process that owns it
    * `:os_pid` - the pid of its OS process
    * `:uptime_ms` - how long ago it was recorded as running
    * `:state` - `:alive`, or `:dead` if its process has ended and its entry is about to be removed

  """

  @enforce_keys [:id, :pid, :os_pid, :uptime_ms, :state]
  defstruct [:id, :pid, :os_pid, :uptime_ms, :state]

  @type t :: %__MODULE__{
          id: String.t(),
          pid: pid(),
          os_pid: pos_integer(),
          uptime_ms: non_neg_integer(),
          state: :alive | :dead
        }
end
