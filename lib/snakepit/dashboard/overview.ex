defmodule Snakepit.Dashboard.Overview do
  @moduledoc false

  # Everything at one moment, as the page shows it: from what the collector has seen to maps for JSON.

  alias Snakepit.Dashboard.{Feed, Series}
  alias Snakepit.{Config, Error, Guardian, Run, RunState}

  # All that the guardian is asked here.
  @answer_ms 500
  # A command line may be as long as anything.
  @command_bytes 300

  @doc "Returns the state of everything."
  @spec build(map()) :: map()
  def build(seen) do
    %{
      at: seen.at,
      run: run(seen.at),
      guardian: guardian(seen.guardian),
      beam: Map.put(process(seen.beam), :os_pid, String.to_integer(System.pid())),
      total: total(seen),
      pools: Enum.map(seen.pools, &pool/1),
      workers: seen.rows,
      events: Feed.events(),
      audit: Feed.audit(),
      audit_interval_ms: if(Run.current(), do: Config.current().audit_interval_ms),
      actions: actions()
    }
  end

  defp actions, do: with(%{actions: actions} <- Feed.dashboard(), do: actions)

  @doc "Returns the row of a worker that runs."
  @spec row(String.t(), map(), map(), map(), map()) :: map()
  def row(id, info, usage, worker, seen) do
    health = seen.healths[info.owner]

    Map.merge(common(id, info, worker, seen), %{
      state: if(usage.processes == 0, do: "ended", else: "running"),
      os_pid: info.os_pid,
      uptime_ms: now() - info.since_ms,
      cpu: Series.cpu(worker.series),
      memory: usage.memory_bytes,
      processes: usage.processes,
      heartbeat: health && health.status,
      latency_ms: health && health.last_latency_ms,
      missed: health && health.missed_heartbeats
    })
  end

  @doc "Returns the row of a worker that has no process yet."
  @spec starting_row(String.t(), map(), map(), map()) :: map()
  def starting_row(id, info, worker, seen) do
    Map.merge(common(id, info, worker, seen), %{
      state: "starting",
      os_pid: nil,
      uptime_ms: now() - info.since_ms,
      cpu: nil,
      memory: 0,
      processes: 0,
      heartbeat: nil,
      latency_ms: nil,
      missed: nil
    })
  end

  defp common(id, info, worker, %{pool_of: pool_of}) do
    {pool, restarts} =
      case pool_of do
        %{^id => {prefix, slot}} -> {prefix, max(slot.restarts, worker.restarts)}
        _none -> {nil, worker.restarts}
      end

    %{
      id: id,
      kind: worker.kind,
      command: command(info.command),
      pool: pool,
      restarts: restarts
    }
  end

  @doc "Returns a command line as text, not too long."
  @spec command([binary()]) :: String.t()
  def command(arguments) do
    text = Enum.join(arguments, " ")
    size = byte_size(text)
    if size > @command_bytes, do: binary_part(text, 0, @command_bytes) <> "…", else: text
  end

  @doc "Returns the pid of the guardian; `nil` if there is none, or it is busy."
  @spec guardian_pid() :: pos_integer() | nil
  def guardian_pid, do: ask(:os_pid)

  defp run(at) do
    with %Run{} = run <- Run.current() do
      %{
        id: run.id,
        state: RunState.current(),
        node: run.record.node,
        started_at: run.record.started_at,
        uptime_ms: at - run.record.started_at,
        data_dir: run.data_dir,
        version: version()
      }
    end
  end

  defp version, do: :snakepit |> Application.spec(:vsn) |> to_string()

  defp guardian(series) do
    case {guardian_pid(), ask(:info)} do
      {nil, _info} -> nil
      {os_pid, {:ok, info}} -> series |> process() |> Map.merge(info) |> Map.put(:os_pid, os_pid)
      {os_pid, _busy} -> series |> process() |> Map.put(:os_pid, os_pid)
    end
  end

  defp ask(question) do
    with server when server != nil <- Process.whereis(Guardian),
         request = :gen_server.send_request(server, question),
         {:reply, answer} <- :gen_server.receive_response(request, @answer_ms) do
      answer
    else
      _gone_or_busy -> nil
    end
  end

  defp process(%{points: [[_at, cpu, memory | _] | _]}), do: %{cpu: cpu, memory: memory}
  defp process(_unknown), do: %{cpu: nil, memory: nil}

  defp total(seen) do
    running = Enum.filter(seen.rows, &(&1.state == "running"))

    seen.total
    |> process()
    |> Map.merge(%{
      workers: length(running),
      starting: Enum.count(seen.rows, &(&1.state == "starting")),
      processes: running |> Enum.map(& &1.processes) |> Enum.sum(),
      healthy: Enum.count(running, &(&1.heartbeat == :healthy)),
      unhealthy: Enum.count(running, &(&1.heartbeat == :unhealthy)),
      latency_ms:
        running |> Enum.map(& &1.latency_ms) |> Enum.reject(&is_nil/1) |> Enum.max(fn -> nil end),
      restarts: seen.rows |> Enum.map(& &1.restarts) |> Enum.sum(),
      series: Series.points(seen.total)
    })
  end

  # A pool that is too busy to answer is shown all the same.
  defp pool({_pid, prefix, nil}), do: %{id: prefix, busy: nil}

  defp pool({_pid, prefix, info}) do
    info
    |> Map.take([:size, :min, :max, :idle, :busy, :starting, :stopping, :waiting, :queued])
    |> Map.merge(%{id: prefix, last_error: info.last_error && Error.cause(info.last_error)})
  end

  defp now, do: System.monotonic_time(:millisecond)
end
