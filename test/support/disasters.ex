defmodule Snakepit.Test.Disasters do
  @moduledoc """
  For second BEAMs: callers that are at work when the guardian dies, and what they hear of it.
  """

  alias Snakepit.{Command, Guardian, Worker}
  alias Snakepit.Test.Family

  # A supervisor that is suspended goes on in milliseconds.
  @pause_ms 5

  @doc """
  So many owners start families and stop every other one, for as long as there is a guardian. The owner that
  completes the `fatal`th operation kills it. Its supervisor is kept from starting another, so that no owner goes on
  with that. Returns the guardian, the reasons that the owners got, and the reason with which its server ended.
  """
  def storm(token, owners, fatal) do
    guardian = Guardian.os_pid()
    server = Process.monitor(Guardian)
    :ok = :sys.suspend(Snakepit.Supervisor)
    done = :atomics.new(1, [])
    command = Command.new!(cmd: ["sh", "-c", Family.script(token)])

    # In one go: of two that add before either reads, neither would see its own number.
    count = fn -> if :atomics.add_get(done, 1, 1) == fatal, do: kill(guardian), else: :ok end

    tasks = for number <- 1..owners, do: Task.async(fn -> own(number, command, count) end)
    reasons = for {:error, error} <- Task.await_many(tasks, 60_000), uniq: true, do: error.reason
    {guardian, reasons, await_down(server, 20_000)}
  end

  defp own(number, command, count) do
    with {:ok, child} <- Guardian.spawn(command, worker_id: "w#{number}"),
         :ok <- count.(),
         :ok <- Guardian.release(child),
         :ok <- count.(),
         :ok <- stop(number, child),
         :ok <- count.() do
      own(number, command, count)
    end
  end

  defp stop(number, child) when rem(number, 2) == 0, do: Guardian.stop(child, timeout: 50)
  defp stop(_number, _child), do: :ok

  @doc "Lets the supervisor start another guardian. Returns its pid."
  def revive do
    :ok = :sys.resume(Snakepit.Supervisor)
    await_guardian()
  end

  defp await_guardian do
    if Process.whereis(Guardian),
      do: Guardian.os_pid(),
      else: receive(after: (@pause_ms -> await_guardian()))
  end

  @doc "Runs a program below a guardian that was started again. Returns its output."
  def echo(text) do
    {:ok, child} = Guardian.spawn(Command.new!(cmd: ["echo", text]))
    :ok = Guardian.release(child)
    receive(do: ({Guardian, _id, {:exited, %{status: 0}, tail}} -> tail))
  end

  @doc """
  Fifty callers, most of whom wait for what their program has left behind to be ended. A hundred commands later
  the disaster happens, which is `:kill_guardian` or `:stop_application`. Returns what became of the last command of
  each.
  """
  def interrupt(disaster) do
    completed = :counters.new(1, [])
    over = :atomics.new(1, [])
    tasks = for _ <- 1..50, do: Task.async(fn -> call(completed, over) end)
    await_count(completed, 100)
    cause(disaster)
    :atomics.put(over, 1, 1)
    for {_task, answer} <- Task.yield_many(tasks, 20_000), do: outcome(answer)
  end

  defp call(completed, over) do
    answer = try_run("sh", ["-c", "(setsid sleep 600 >/dev/null &)"])
    :counters.add(completed, 1, 1)

    if match?({:ok, _result}, answer) and :atomics.get(over, 1) == 0,
      do: call(completed, over),
      else: answer
  end

  # Without an application it raises.
  defp try_run(program, arguments) do
    Snakepit.run(program, arguments)
  rescue
    error -> {:raised, error}
  end

  defp await_count(completed, count) do
    if :counters.get(completed, 1) < count,
      do: receive(after: (1 -> await_count(completed, count)))
  end

  defp cause(:kill_guardian), do: kill(Guardian.os_pid())
  defp cause(:stop_application), do: :ok = Application.stop(:snakepit)

  defp outcome({:ok, {:ok, _result}}), do: :ended
  defp outcome({:ok, {:raised, _error}}), do: :not_running
  defp outcome({:ok, {:error, error}}), do: error.reason
  defp outcome(nil), do: :hangs

  @doc "Ten callers start something while the guardian dies, so that some find the old one's socket closed."
  def start_at_its_death do
    guardian = Guardian.os_pid()
    kill(guardian)

    tasks =
      for _ <- 1..10,
          do: Task.async(fn -> Snakepit.run("echo", ["here"], stderr_to_stdout: true) end)

    Task.await_many(tasks, 30_000)
  end

  @doc """
  Starts a worker, one that is not ready yet, a command and a stream, each with a family that ignores SIGTERM. What
  each of them hears is for `heard/0`.
  """
  def start_owners(token) do
    Process.flag(:trap_exit, true)
    argv = ["sh", "-c", "trap '' TERM; " <> Family.script(token)]
    {:ok, worker} = Worker.start_link(cmd: argv, on_guardian_down: :exit)

    tasks =
      for own <- [&own_unready/1, &own_command/1, &own_stream/1],
          do: Task.async(fn -> own.(argv) end)

    Process.put(:owners, {worker, tasks})
    :ok
  end

  defp own_unready(argv) do
    Process.flag(:trap_exit, true)
    never = [ready: {:output, ~r/never/}, ready_timeout: 60_000]
    {:error, error} = Worker.start_link([cmd: argv, on_guardian_down: :exit] ++ never)
    error.reason
  end

  defp own_command([program | arguments]) do
    {:error, error} = Snakepit.run(program, arguments)
    {error.reason, left()}
  end

  defp own_stream(argv) do
    Stream.run(Snakepit.stream!(argv))
  rescue
    error in Snakepit.Error -> {error.reason, left()}
  end

  defp left, do: Process.info(self(), [:messages, :monitors])

  @doc "Returns what those of `start_owners/1` have heard."
  def heard do
    {worker, tasks} = Process.get(:owners)

    reason =
      receive do
        {:EXIT, ^worker, reason} -> reason
      after
        10_000 -> :hangs
      end

    [
      reason
      | for {_task, answer} <- Task.yield_many(tasks, 10_000) do
          with {:ok, heard} <- answer, do: heard
        end
    ]
  end

  @doc "Kills the server of the guardian, which cannot tell anybody then. Returns when its successor serves."
  def kill_server do
    guardian = Guardian.os_pid()
    Process.exit(Process.whereis(Guardian), :kill)
    {"", 0} = Snakepit.cmd("true", [])
    guardian
  end

  defp await_down(monitor, timeout_ms) do
    receive do
      {:DOWN, ^monitor, :process, _server, reason} -> reason
    after
      timeout_ms -> :still_there
    end
  end

  defp kill(os_pid) do
    {"", 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
    :ok
  end
end
