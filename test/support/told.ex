defmodule Snakepit.Test.Told do
  @moduledoc """
  For second BEAMs with the `:telemetry` of `test/fixtures/telemetry.exs`: lives of workers and other things that take
  time, and the events of them.
  """

  alias Snakepit.{Guardian, Pool, Worker}
  alias Snakepit.Test.Eventually

  # It is no dependency.
  @telemetry :telemetry

  @doc """
  Starts a worker, ends it, and returns its OS pid and the events of its life. It ends by `:stop`, by a `:crash`, by
  `:itself`, or is stopped after its guardian was `:lost` and it had another process.
  """
  def life(opts, how) do
    Process.flag(:trap_exit, true)
    {:ok, worker} = Worker.start_link(opts)
    os_pid = Worker.os_pid!(worker)
    monitor = Process.monitor(worker)
    end_worker(how, worker, os_pid)
    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
    {os_pid, events(opts[:id])}
  end

  defp end_worker(:itself, _worker, _os_pid), do: :ok
  defp end_worker(:stop, worker, _os_pid), do: Worker.stop(worker)
  defp end_worker(:crash, worker, _os_pid), do: Process.exit(worker, :crash)

  defp end_worker(:lost, worker, os_pid) do
    {"", 0} = System.cmd("kill", ["-KILL", "#{Guardian.os_pid()}"])
    Eventually.eventually(fn -> Worker.os_pid!(worker) != os_pid end)
    Worker.stop(worker)
  end

  @doc "Fails to start a worker. Returns the events of it."
  def failed_start(opts) do
    Process.flag(:trap_exit, true)
    {:error, _error} = Worker.start_link(opts)
    events(opts[:id])
  end

  # Without the spans.
  defp events(id) do
    for {event, numbers, %{worker_id: ^id} = metadata} <- all(),
        not is_map_key(metadata, :telemetry_span_context),
        do: {event, numbers, Map.delete(metadata, :worker_pid)}
  end

  @doc "Does everything that is a span. Returns the spans' events."
  def spans do
    Process.flag(:trap_exit, true)
    {:ok, worker} = Worker.start_link(id: "span", cmd: ["sleep", "600"])
    :ok = Worker.stop(worker)
    {"", 3} = Snakepit.cmd("sh", ["-c", "exit 3"])
    {:error, _error} = Snakepit.run("no-such-program", [])
    raise_in_command()
    {:ok, pool} = Pool.start_link(size: 1, worker: [cmd: ["sleep", "600"]])
    true = is_pid(Pool.with_worker(pool, & &1))
    GenServer.stop(pool)

    for {event, numbers, %{telemetry_span_context: context} = metadata} <- all(),
        do: {Enum.drop(event, 1), numbers, metadata, context}
  end

  defp raise_in_command do
    Snakepit.cmd("echo", ["x"], into: File.stream!("/no/such/file"))
  rescue
    File.Error -> :ok
  end

  @doc "Stops the application. Returns the id of the run, and the event of its end."
  def run_end do
    run_id = Snakepit.run_id()
    # The table of all events belongs to the application, and ends with it.
    handler = &__MODULE__.tell/4
    arguments = ["end", [[:snakepit, :run, :terminated]], handler, self()]
    :ok = apply(@telemetry, :attach_many, arguments)
    :ok = Application.stop(:snakepit)
    {run_id, receive(do: ({:told, numbers, metadata} -> {numbers, metadata}))}
  end

  @doc false
  def tell(_event, numbers, metadata, asker), do: send(asker, {:told, numbers, metadata})

  @doc "Starts and stops a worker, and has it miss two heartbeats."
  def noteworthy(id) do
    {:ok, worker} = Worker.start_link(id: id, cmd: ["sleep", "600"])
    :ok = Worker.stop(worker)
    metadata = %{worker_id: id, timeout_threshold_ms: 7}
    event = [:snakepit, :heartbeat, :timeout]
    apply(@telemetry, :execute, [event, %{count: 1, missed_count: 2}, metadata])
  end

  defp all, do: apply(@telemetry, :events, [])
end
