defmodule Snakepit.Dashboard.Feed do
  @moduledoc false

  # What has happened since the dashboard started, the newest of it: starts and ends of processes, missed heartbeats,
  # what the auditor found. The process that emits an event writes it down here. Without a dashboard there is no table,
  # and to see that is all that is done.

  alias Snakepit.Error
  alias Snakepit.Worker.Exit

  @most 200
  # Of the output of a process that has ended.
  @tail_bytes 2_048

  @type event :: %{
          id: pos_integer(),
          at: integer(),
          kind: String.t(),
          level: String.t(),
          worker: String.t() | nil,
          text: String.t(),
          output: binary() | nil
        }

  @doc "Creates the table, with the options of the dashboard. The caller owns it."
  @spec create_table(map()) :: true
  def create_table(options) do
    :ets.new(__MODULE__, [:named_table, :public, :ordered_set, write_concurrency: true])
    :ets.insert(__MODULE__, [{:last, 0}, {:dashboard, :options, options}])
  end

  @doc "Returns whether there is a dashboard to note events for."
  @spec there?() :: boolean()
  def there?, do: :ets.whereis(__MODULE__) != :undefined

  @doc "Returns the options of the dashboard that runs; `nil` if none does."
  @spec dashboard() :: map() | nil
  def dashboard do
    :ets.lookup_element(__MODULE__, :dashboard, 3)
  rescue
    ArgumentError -> nil
  end

  @doc "Notes an event of `Snakepit.Telemetry`, if it is one for people and there is a dashboard."
  @spec record([atom()], map(), map()) :: :ok
  def record([:snakepit, :process | _] = event, measurements, metadata),
    do: note(event, measurements, metadata)

  def record([:snakepit, :launch, :stop] = event, measurements, %{error: _error} = metadata),
    do: note(event, measurements, metadata)

  def record([:snakepit, :heartbeat, :timeout] = event, measurements, metadata),
    do: note(event, measurements, metadata)

  def record([:snakepit, group | _] = event, measurements, metadata)
      when group in [:audit, :pool, :run, :watchdog],
      do: note(event, measurements, metadata)

  def record(_event, _measurements, _metadata), do: :ok

  @doc "Notes that somebody has done something by the dashboard to a worker, or to a pool."
  @spec record_action(String.t(), String.t(), pool? :: boolean()) :: :ok
  def record_action(id, text, true),
    do: put(%{kind: "action", level: "info", text: "#{id} #{text}"})

  def record_action(id, text, false),
    do: put(%{kind: "action", level: "info", worker: id, text: text})

  @doc "Returns the events, newest first."
  @spec events() :: [event()]
  def events do
    :ets.select_reverse(__MODULE__, [{{:_, :"$1"}, [{:is_map, :"$1"}], [:"$1"]}])
  rescue
    ArgumentError -> []
  end

  @doc "Returns what the auditor has reported last, and when; `nil` if it has not yet."
  @spec audit() :: map() | nil
  def audit do
    case :ets.lookup(__MODULE__, :audit) do
      [{:audit, at, report}] -> Map.put(report, :at, at)
      [] -> nil
    end
  rescue
    ArgumentError -> nil
  end

  defp note(event, measurements, metadata) do
    if there?(), do: tell(tl(event), measurements, metadata)
    :ok
  rescue
    # Whoever emits an event goes on in any case. The table may have gone meanwhile.
    _error -> :ok
  end

  defp tell([:process, :started], %{startup_duration_ms: ms}, metadata) do
    text = "started and ready after #{ms} ms, OS process #{metadata.os_pid}"
    put(%{kind: "started", level: "good", worker: metadata.worker_id, text: text})
  end

  defp tell([:process, :restarted], _measurements, metadata) do
    text =
      "started again as OS process #{metadata.os_pid}, because the guardian was lost " <>
        "(it was #{metadata.previous_os_pid})"

    put(%{kind: "restarted", level: "warning", worker: metadata.worker_id, text: text})
  end

  defp tell([:process, :terminated], measurements, %{worker_id: id} = metadata) do
    meant? = meant?(metadata.reason)

    put(%{
      kind: "ended",
      level: if(meant?, do: "info", else: "bad"),
      worker: id,
      text:
        "#{why(metadata.reason)} after #{seconds(measurements.uptime_ms)}, OS process #{metadata.os_pid}",
      output: unless(meant?, do: last(metadata[:output_tail] || ""))
    })
  end

  defp tell([:launch, :stop], _measurements, %{error: error} = metadata) do
    text = "could not be started: #{Error.cause(%{error | output: nil})}"
    put(%{kind: "failed", level: "bad", worker: metadata.worker_id, text: text})
  end

  defp tell([:heartbeat, :timeout], %{missed_count: missed}, metadata) do
    text =
      "has not answered a heartbeat within #{metadata.timeout_threshold_ms} ms, #{missed} in a row"

    put(%{kind: "heartbeat", level: "warning", worker: metadata.worker_id, text: text})
  end

  defp tell([:audit, :completed], report, _metadata) do
    report = Map.take(report, [:orphans, :stale_entries, :duration_ms])
    :ets.insert(__MODULE__, {:audit, now(), report})

    if report.orphans + report.stale_entries > 0 do
      text =
        "the auditor ended #{report.orphans} orphans and removed #{report.stale_entries} entries without a process"

      put(%{kind: "audit", level: if(report.orphans > 0, do: "bad", else: "warning"), text: text})
    end
  end

  defp tell([:run, :reaped], _measurements, metadata) do
    text =
      "reaped run #{metadata.run_id || "without a ledger"}: #{metadata.found} processes found"

    put(%{kind: "reaped", level: "warning", text: text})
  end

  defp tell([:watchdog, :silent], %{silent_ms: ms}, metadata) do
    text = "the guardian did not answer for #{ms} ms, and was #{metadata.action}"
    put(%{kind: "guardian", level: "bad", text: text})
  end

  defp tell([:watchdog, :started], _measurements, metadata) do
    text = "a guardian has started, OS process #{metadata.guardian_pid}"
    put(%{kind: "guardian", level: "warning", text: text})
  end

  defp tell([:pool, :recycled], _measurements, metadata) do
    text = "has worn out (#{metadata.reason}), and another worker takes its place"
    put(%{kind: "recycled", level: "info", worker: metadata.worker_id, text: text})
  end

  defp tell(_other, _measurements, _metadata), do: :ok

  # A worker that was not ready in time is no failure to its supervisor, and is one to people.
  defp meant?({:shutdown, %Error{}}), do: false
  defp meant?(reason), do: Exit.orderly?(reason)

  defp why(reason) when reason in [:normal, :shutdown], do: "stopped"
  defp why({:shutdown, reason}) when not is_struct(reason), do: "stopped"
  defp why(reason), do: Error.cause(%{Error.from_exit(reason) | output: nil})

  defp put(event) do
    id = :ets.update_counter(__MODULE__, :last, 1)
    event = Map.merge(%{id: id, at: now(), worker: nil, output: nil}, event)
    :ets.insert(__MODULE__, {id, event})
    :ets.delete(__MODULE__, id - @most)
    :ok
  end

  defp last(output) do
    size = byte_size(output)
    if size > @tail_bytes, do: binary_part(output, size, -@tail_bytes), else: output
  end

  defp seconds(ms) when ms < 1_000, do: "#{ms} ms"
  defp seconds(ms), do: "#{Float.round(ms / 1_000, 1)} s"

  defp now, do: System.os_time(:millisecond)
end
