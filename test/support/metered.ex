defmodule Snakepit.Test.Metered do
  @moduledoc "For second BEAMs whose metrics are looked at: everything that is counted, some of it so often that a test knows."

  alias Snakepit.{Error, Metrics, Pool, Worker}
  alias Snakepit.Test.Eventually

  @heartbeat [ping_interval: 50, timeout_threshold: 10_000]

  @doc "Serves the metrics. Returns the port."
  def serve do
    {:ok, server} = Metrics.Server.start_link(port: 0)
    # Not with the one who asks.
    Process.unlink(server)
    Metrics.Server.port(server)
  end

  @doc "Starts what stays: a worker with heartbeats, and a pool of two."
  def stay(python, lifeline) do
    {:ok, beating} =
      Worker.start_link(
        id: "beating-1",
        cmd: [python, lifeline],
        heartbeat: @heartbeat,
        ready: :heartbeat
      )

    busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exec sleep 600"
    {:ok, pool} = Pool.start_link(name: Metered, size: 2, worker: [cmd: ["sh", "-c", busy]])
    :ok = Pool.await_ready(pool)
    for pid <- [beating, pool], do: Process.unlink(pid)
    :ok
  end

  @doc """
  Does each thing that is counted once. Of the group `job`: two starts, one of which is a restart; an end with a status,
  and one that was asked for; and two failed starts, one of which was launched.
  """
  def work do
    Process.flag(:trap_exit, true)
    {:ok, failing} = Worker.start_link(id: "job-1", cmd: ["sh", "-c", "exit 3"])
    await_end(failing)
    {:ok, worker} = Worker.start_link(id: "job-2", cmd: ["sleep", "600"])
    :ok = Worker.stop(worker)
    {:error, %Error{}} = Worker.start_link(id: "job-3", cmd: ["no-such-program"])
    never = [ready: {:output, "never"}, ready_timeout: 1]
    {:error, %Error{}} = Worker.start_link([id: "job-4", cmd: ["sleep", "600"]] ++ never)
    # So that the next round begins like this one.
    {:ok, worker} = Worker.start_link(id: "job-5", cmd: ["sleep", "600"])
    {:ok, other} = Worker.start_link(id: "job-6", cmd: ["sleep", "600"])
    for one <- [worker, other], do: :ok = Worker.stop(one)
    true = is_pid(Pool.with_worker(Metered, & &1))
    {"", 0} = Snakepit.cmd("true", [])
    {:error, %Error{}} = Snakepit.run("no-such-program", [])
    _report = Snakepit.Auditor.audit()
    :ok
  end

  @doc "Waits until the guardian of a BEAM before this one has been found."
  def await_activation do
    Eventually.eventually(fn -> Metrics.text() =~ "snakepit_watchdog_activations_total 1" end)
  end

  @doc """
  Where definitions for `Telemetry.Metrics` say otherwise than the text: the values of each counter there, made from the
  events that were told, and here. Both the telemetry and the reporters of `test/fixtures` have to be there.
  """
  def disagreements do
    told = apply(:telemetry, :events, [])
    text = Metrics.text()

    for %{kind: :counter} = metric <- Metrics.definitions(),
        {labels, count} <- counted(metric, told),
        line = "#{Enum.join(metric.name, "_")}#{labels(metric.tags, labels)} #{count}\n",
        not String.contains?(text, line),
        do: line
  end

  defp counted(%{event_name: name} = metric, told) do
    for(
      {^name, _numbers, metadata} <- told,
      metric.keep.(metadata),
      do: metric.tag_values.(metadata)
    )
    |> Enum.frequencies()
  end

  defp labels([], _values), do: ""

  defp labels(names, values),
    do: "{" <> Enum.map_join(names, ",", &~s(#{&1}="#{Map.fetch!(values, &1)}")) <> "}"

  defp await_end(worker) do
    monitor = Process.monitor(worker)
    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
  end
end
