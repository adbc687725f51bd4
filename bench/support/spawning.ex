defmodule Snakepit.Bench.Spawning do
  @moduledoc """
  Starting processes until they run, in this BEAM: through the gate, or as workers. Each gives µs.
  """

  alias Snakepit.{Command, Guardian, Worker}

  @patience_ms 60_000

  @doc "What is started: by its path, so that nobody has to search for it."
  @spec command() :: [String.t()]
  def command, do: [System.find_executable("sleep"), "120"]

  @doc "One after the other; how long each took. They are ended when all are there."
  @spec one_after_the_other(pos_integer()) :: [float()]
  def one_after_the_other(count) do
    command = Command.new!(cmd: command())

    times =
      for _one <- 1..count do
        {us, _os_pid} = Snakepit.Bench.once(fn -> start(command) end)
        us
      end

    end_all()
    times
  end

  @doc """
  Each by a process of its own, all at once: how long until the last one runs, and the OS pids. They
  run until `end_all/0`.
  """
  @spec at_once(pos_integer()) :: {float(), [pos_integer()]}
  def at_once(count) do
    command = Command.new!(cmd: command())
    bench = self()

    owners =
      for _one <- 1..count do
        spawn_link(fn ->
          receive do: (:go -> :ok)
          send(bench, {:running, start(command)})
          Process.sleep(:infinity)
        end)
      end

    Snakepit.Bench.once(fn ->
      for owner <- owners, do: send(owner, :go)
      for _owner <- owners, do: receive(do: ({:running, os_pid} -> os_pid))
    end)
  end

  @doc "Workers of the caller, one after the other: how long until the last one runs, and they."
  @spec workers(pos_integer()) :: {float(), [pid()]}
  def workers(count) do
    command = command()

    Snakepit.Bench.once(fn ->
      for _one <- 1..count do
        {:ok, worker} = Worker.start_link(cmd: command)
        worker
      end
    end)
  end

  @doc "Stops workers, all at once."
  @spec stop_workers([pid()]) :: :ok
  def stop_workers(workers) do
    workers
    |> Task.async_stream(&Worker.stop/1, max_concurrency: 100, timeout: @patience_ms)
    |> Enum.each(fn {:ok, :ok} -> :ok end)
  end

  @doc "Ends all, and waits until the guardian is as it was before the first."
  @spec end_all() :: :ok
  def end_all do
    {:ok, _counts} = Guardian.stop_all()
    await_quiet(System.monotonic_time(:millisecond) + @patience_ms)
  end

  defp await_quiet(deadline) do
    case Guardian.info() do
      {:ok, %{children: 0, ahead: ahead, adopted: 0}} when ahead > 0 ->
        :ok

      {:ok, info} ->
        if System.monotonic_time(:millisecond) > deadline,
          do: raise("not quiet: #{inspect(info)}")

        Process.sleep(10)
        await_quiet(deadline)
    end
  end

  defp start(command) do
    # As every worker is started.
    {:ok, child, monitor} = Guardian.start(command, "")
    Process.demonitor(monitor, [:flush])
    child.os_pid
  end
end
