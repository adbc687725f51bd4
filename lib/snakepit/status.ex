defmodule Snakepit.Status do
  @moduledoc """
  The workers of this BEAM with all that is known of them: what `snakepit_guardian ps` shows, and what only the BEAM knows.

      bin/my_app rpc 'IO.puts(Snakepit.Status.table())'

  A worker:

    * `:worker_id`, `:run_id`, `:os_pid`
    * `:state` - `:starting` or `:running`
    * `:processes`, `:cpu_us`, `:rss_bytes` - of everything that it has started too
    * `:uptime_ms` - how long ago it was recorded
    * `:heartbeat` - a `Snakepit.HeartbeatMonitor.Health`, or `nil`
    * `:restarts` - how often its pool has replaced it; `nil` for a worker of no pool

  """

  alias Snakepit.HeartbeatMonitor.{Health, Poller}
  alias Snakepit.Metrics.Usage
  alias Snakepit.Pool.{Directory, ProcessRegistry}
  alias Snakepit.Status.Table

  @enforce_keys [:worker_id, :run_id, :os_pid, :state, :processes, :cpu_us, :rss_bytes] ++
                  [:uptime_ms, :heartbeat, :restarts]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          worker_id: String.t(),
          run_id: String.t(),
          os_pid: pos_integer() | nil,
          state: :starting | :running,
          processes: non_neg_integer(),
          cpu_us: non_neg_integer(),
          rss_bytes: non_neg_integer(),
          uptime_ms: non_neg_integer(),
          heartbeat: Health.t() | nil,
          restarts: non_neg_integer() | nil
        }

  # For all pools together: one that is busy is shown without its restarts.
  @answer_ms 500

  @doc "Returns all workers, by their ids. Raises if Snakepit is not started."
  @spec workers() :: [t()]
  def workers do
    run_id = Snakepit.run_id()
    healths = Poller.healths()
    restarts = restarts()
    now = System.monotonic_time(:millisecond)
    {active, reserved} = Enum.split_with(registered(), fn {_id, info} -> active?(info) end)
    starting = for {id, info} <- reserved, do: {id, info, nil}

    rows =
      for {id, info, usage} <- starting ++ Usage.of_workers(active) do
        %__MODULE__{
          worker_id: id,
          run_id: run_id,
          os_pid: info[:os_pid],
          state: if(active?(info), do: :running, else: :starting),
          processes: usage[:processes] || 0,
          cpu_us: usage[:cpu_us] || 0,
          rss_bytes: usage[:memory_bytes] || 0,
          uptime_ms: max(now - info.since_ms, 0),
          heartbeat: healths[info.owner],
          restarts: restarts[id]
        }
      end

    Enum.sort_by(rows, & &1.worker_id)
  end

  @doc "Returns the workers as a table. With `:width`, no line is longer."
  @spec table(width: pos_integer()) :: String.t()
  def table(opts \\ []), do: Table.render(workers(), Keyword.get(opts, :width, :infinity))

  defp registered, do: ProcessRegistry.list_all_workers()

  defp active?(info), do: info.status == :active

  defp restarts do
    asked = for {pid, _prefix} <- Directory.all(), do: :gen_server.send_request(pid, :info)
    deadline = System.monotonic_time(:millisecond) + @answer_ms

    for request <- asked,
        left = max(deadline - System.monotonic_time(:millisecond), 0),
        {:reply, info} <- [:gen_server.receive_response(request, left)],
        worker <- info.workers,
        into: %{},
        do: {worker.id, worker.restarts}
  end
end
