defmodule Snakepit.Cluster.Lease do
  @moduledoc """
  A lease that somebody else keeps: the behaviour behind `Snakepit.Cluster.Singleton`.

  Snakepit has one, `Snakepit.Cluster.Lease.Majority`. If you have a database or a Raft cluster anyway, write another one
  on it, and name it with `lease: MyApp.PostgresLease`.

  A lease is a process that tries to get it and keeps it, and sends its owner

    * `{Snakepit.Cluster.Lease, pid, {:held, token, until}}` when it has the lease, and again whenever it has it for longer.
      `token` is greater than those of all leases of this id before. `until` is a moment of `now/0`. Nobody else may have
      the lease before that moment has passed for everybody: that is all of the safety, and it is up to this process. Count
      from when you *asked*, and not from when the answer came
    * `{Snakepit.Cluster.Lease, pid, :lost}` when it has lost the lease. It goes on to try

  The owner has its process killed before `until`, also if the BEAM hangs, and calls `c:release/1` when it is dead.
  """

  alias Snakepit.Native

  @doc """
  Starts the process, linked to the caller. Options are `:id`, a string, and `:owner`, a pid, besides what
  `lease: {module, options}` has.
  """
  @callback start_link(keyword()) :: {:ok, pid()} | {:error, term()}

  @doc "Gives the lease back, whose process is dead, and tries to get it again later."
  @callback release(pid()) :: :ok

  @doc """
  Milliseconds of a clock that goes on while the machine is suspended, which `System.monotonic_time/1` does not.

      iex> is_integer(Snakepit.Cluster.Lease.now())
      true

  """
  @spec now() :: non_neg_integer()
  def now do
    {:ok, now} = Native.clock_read()
    now
  end
end
