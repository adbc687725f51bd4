defmodule Snakepit.GuardianDeathTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  # No more than a supervisor forgives in its five seconds.
  @rounds 3
  @workers 100

  # A hundred owners that start families and stop every other one, for as long as there is a
  # guardian. Whoever completes the `fatal`th operation kills it. Its supervisor is kept from starting
  # another, so that none of them goes on with that.
  defp storm(token, fatal) do
    """
    guardian = Snakepit.Guardian.os_pid()
    server = Process.monitor(Snakepit.Guardian)
    :ok = :sys.suspend(Snakepit.Supervisor)
    done = :atomics.new(1, [])
    command = Snakepit.Command.new!(cmd: ["sh", "-c", #{inspect(Family.script(token))}])

    count = fn ->
      # In one go: of two that add before either reads, neither would see its own number.
      if :atomics.add_get(done, 1, 1) == #{fatal},
        do: System.cmd("kill", ["-KILL", Integer.to_string(guardian)])

      :ok
    end

    round = fn number ->
      with {:ok, child} <- Snakepit.Guardian.spawn(command, worker_id: "w\#{number}"),
           :ok <- count.(),
           :ok <- Snakepit.Guardian.release(child),
           :ok <- count.(),
           :ok <- (if rem(number, 2) == 0, do: Snakepit.Guardian.stop(child, timeout: 50), else: :ok) do
        count.()
      end
    end

    again = fn again, number ->
      with :ok <- round.(number), do: again.(again, number)
    end

    tasks = for number <- 1..#{@workers}, do: Task.async(fn -> again.(again, number) end)
    reasons = for {:error, error} <- Task.await_many(tasks, 60_000), uniq: true, do: error.reason
    reason = receive do {:DOWN, ^server, :process, _, reason} -> inspect(reason) after 20_000 -> :still_there end
    {guardian, reasons, reason}
    """
  end

  # Answered by the new one.
  @revive """
  :ok = :sys.resume(Snakepit.Supervisor)
  wait = fn wait ->
    if Process.whereis(Snakepit.Guardian), do: :ok, else: (receive do after 5 -> wait.(wait) end)
  end
  wait.(wait)
  Snakepit.Guardian.os_pid()
  """

  for part <- 1..4 do
    test "killed in the midst of spawns and stops, it leaves nothing (part #{part})" do
      seed = ExUnit.configuration()[:seed]
      :rand.seed(:exsss, {seed, unquote(part), 0})
      bystanders = Family.bystanders()
      beam = Beam.start()

      # The other BEAM's families are the nearest bystanders.
      neighbour = Beam.start(data_dir: beam.data_dir)
      neighbours = Family.token()
      Beam.run(neighbour, Family.start_code(neighbours))
      eventually(fn -> length(Family.members(neighbours)) == 4 end)

      for round <- 1..@rounds do
        token = Family.token()
        # Between the very first spawn and a few hundred running processes.
        fatal = :rand.uniform(300)
        context = "seed #{seed}, part #{unquote(part)}, round #{round}, operation #{fatal}"

        {old, reasons, down} = Beam.run(beam, storm(token, fatal))
        # At once: who speaks for the guardian ends when the sweep is over.
        assert Family.members(token) == [], context
        assert down == ":guardian_down", context
        assert reasons == [:guardian_down], context

        new = Beam.run(beam, @revive)
        assert Family.members(token) == [], context
        assert old != new, context
        refute ProcScan.running?(old), context
        assert ProcScan.running?(beam.os_pid), context
      end

      assert Beam.run(beam, """
             {:ok, child} = Snakepit.Guardian.spawn(Snakepit.Command.new!(cmd: ["echo", "back"]))
             :ok = Snakepit.Guardian.release(child)
             receive do {Snakepit.Guardian, _, {:exited, %{status: 0}, tail}} -> tail end
             """) == "back\n"

      assert Enum.all?(bystanders, &ProcScan.running?/1)
      assert length(Family.members(neighbours)) == 4

      guardians = for one <- [beam, neighbour], do: Beam.run(one, "Snakepit.Guardian.os_pid()")
      for one <- [beam, neighbour], do: Beam.kill(one)
      eventually(fn -> not Enum.any?(guardians, &ProcScan.running?/1) end, 10_000)
      assert Family.members(neighbours) == []
    end
  end

  # Fifty callers, most of whom wait for what their program has left behind to be ended. Each goes on
  # until it hears of the disaster.
  defp callers(disaster) do
    """
    completed = :counters.new(2, [])

    call = fn call ->
      answer =
        try do
          Snakepit.run("sh", ["-c", "(setsid sleep 600 >/dev/null &)"])
        rescue
          error -> {:raised, error}
        end

      :counters.add(completed, 1, 1)

      case answer do
        {:ok, _result} -> if :counters.get(completed, 2) == 0, do: call.(call), else: answer
        _error -> answer
      end
    end

    tasks = for _ <- 1..50, do: Task.async(fn -> call.(call) end)
    wait = fn wait -> if :counters.get(completed, 1) < 100, do: (receive do after 1 -> wait.(wait) end) end
    wait.(wait)
    #{disaster}
    :counters.add(completed, 2, 1)

    for answer <- Task.yield_many(tasks, 20_000) |> Enum.map(&elem(&1, 1)) do
      case answer do
        {:ok, {:ok, _result}} -> :ended
        {:ok, {:raised, _error}} -> :not_running
        {:ok, {:error, error}} -> error.reason
        nil -> :hangs
      end
    end
    """
  end

  test "killed in the midst of commands that end, it keeps no caller waiting" do
    beam = Beam.start()
    kill = ~S|System.cmd("kill", ["-KILL", to_string(Snakepit.Guardian.os_pid())])|
    answers = for _ <- 1..@rounds, answer <- Beam.run(beam, callers(kill)), do: answer
    assert Enum.uniq(answers) -- [:ended, :guardian_down] == []
    # Otherwise it was killed when nobody needed it.
    assert :guardian_down in answers
    Beam.kill(beam)
  end

  test "who starts something at the moment of its death gets it from the next one" do
    beam = Beam.start()

    # Ten callers, so that some of them come to the old one's door when it is shut.
    code = ~S"""
    guardian = to_string(Snakepit.Guardian.os_pid())
    start = fn -> Task.async(fn -> Snakepit.run("echo", ["here"], stderr_to_stdout: true) end) end
    System.cmd("kill", ["-KILL", guardian])
    tasks = for _ <- 1..10, do: start.()
    Task.await_many(tasks, 30_000)
    """

    answers = for _ <- 1..@rounds, answer <- Beam.run(beam, code), do: answer
    # One that has its process already, when the news comes, loses it.
    served =
      Enum.reject(answers, &match?({:error, %{operation: :run, reason: :guardian_down}}, &1))

    assert Enum.all?(served, &match?({:ok, %{status: 0, stdout: "here\n"}}, &1))
    Beam.kill(beam)
  end

  test "an application that stops keeps no caller waiting either" do
    beam = Beam.start()

    for _ <- 1..@rounds do
      answers = Beam.run(beam, callers("Application.stop(:snakepit)"))
      refute :hangs in answers
      assert length(answers) == 50
      assert Beam.run(beam, "Application.ensure_all_started(:snakepit)") == {:ok, [:snakepit]}
    end

    Beam.kill(beam)
  end

  # A worker, one that is not ready yet, a command and a stream, each with a family that ignores
  # SIGTERM. What each of them hears is kept for later.
  defp owners(token) do
    """
    Process.flag(:trap_exit, true)
    argv = ["sh", "-c", #{inspect("trap '' TERM; " <> Family.script(token))}]
    {:ok, worker} = Snakepit.Worker.start_link(cmd: argv, on_guardian_down: :exit)
    left = fn -> Process.info(self(), [:messages, :monitors]) end

    late = Task.async(fn ->
      Process.flag(:trap_exit, true)
      {:error, error} = Snakepit.Worker.start_link(cmd: argv, ready: {:output, ~r/never/}, ready_timeout: 60_000, on_guardian_down: :exit)
      error.reason
    end)

    cmd = Task.async(fn ->
      {:error, error} = Snakepit.run("sh", tl(argv))
      {error.reason, left.()}
    end)

    stream = Task.async(fn ->
      error = try do Stream.run(Snakepit.stream!(argv)) rescue error -> error end
      {error.reason, left.()}
    end)

    Process.put(:owners, {worker, [late, cmd, stream]})
    """
  end

  # The server cannot say a word to anybody. Its successor serves whoever comes first.
  @kill_server """
  guardian = Snakepit.Guardian.os_pid()
  Process.exit(Process.whereis(Snakepit.Guardian), :kill)
  {"", 0} = Snakepit.cmd("true", [])
  guardian
  """

  @heard """
  {worker, tasks} = Process.get(:owners)
  reason = receive do {:EXIT, ^worker, reason} -> reason after 10_000 -> :hangs end
  [reason | for {_task, answer} <- Task.yield_many(tasks, 10_000) do
    with {:ok, heard} <- answer, do: heard
  end]
  """

  test "a server that is killed keeps no owner waiting, and leaves nothing to its successor" do
    # Long enough to be noticed by whoever does not wait for it.
    beam = Beam.start(watchdog: [grace_period_ms: 1_000])
    bystanders = Family.bystanders()
    nothing = [messages: [], monitors: []]

    for _ <- 1..@rounds do
      token = Family.token()
      Beam.run(beam, owners(token) <> ":ok")
      eventually(fn -> length(Family.members(token)) == 16 end)

      old = Beam.run(beam, @kill_server)
      assert Family.members(token) == []
      refute ProcScan.running?(old)

      down = :guardian_down
      assert Beam.run(beam, @heard) == [down, down, {down, nothing}, {down, nothing}]
      # It speaks of the death of the BEAM, which lives.
      assert Path.wildcard(Path.join(beam.data_dir, "*/obituary")) == []
      # The auditor is the last one to be started again.
      eventually(fn -> Beam.run(beam, "Process.whereis(Snakepit.Auditor) != nil") end)
      assert Beam.run(beam, "Snakepit.Auditor.audit().orphans") == 0
    end

    assert Enum.all?(bystanders, &ProcScan.running?/1)
    Beam.kill(beam)
  end
end
