defmodule Snakepit.GuardianDeathTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Disasters, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  # No more than a supervisor forgives in its five seconds.
  @rounds 3
  @workers 100

  for part <- 1..4 do
    test "killed in the midst of spawns and stops, it leaves nothing (part #{part})" do
      seed = ExUnit.configuration()[:seed]
      :rand.seed(:exsss, {seed, unquote(part), 0})
      bystanders = Family.bystanders()
      beam = Beam.start()

      # The other BEAM's families are the nearest bystanders.
      neighbour = Beam.start(data_dir: beam.data_dir)
      neighbours = Family.token()
      Beam.call(neighbour, Family, :launch, [neighbours])
      eventually(fn -> length(Family.members(neighbours)) == 4 end)

      for round <- 1..@rounds do
        token = Family.token()
        # Between the very first spawn and a few hundred running processes.
        fatal = :rand.uniform(300)
        context = "seed #{seed}, part #{unquote(part)}, round #{round}, operation #{fatal}"

        {old, reasons, down} = Beam.call(beam, Disasters, :storm, [token, @workers, fatal])
        # At once: who speaks for the guardian ends when the sweep is over.
        assert Family.members(token) == [], context
        assert down == :guardian_down, context
        assert reasons == [:guardian_down], context

        new = Beam.call(beam, Disasters, :revive)
        assert Family.members(token) == [], context
        assert old != new, context
        refute ProcScan.running?(old), context
        assert ProcScan.running?(beam.os_pid), context
      end

      assert Beam.call(beam, Disasters, :echo, ["back"]) == "back\n"
      assert Enum.all?(bystanders, &ProcScan.running?/1)
      assert length(Family.members(neighbours)) == 4

      guardians = for one <- [beam, neighbour], do: Beam.run(one, "Snakepit.Guardian.os_pid()")
      for one <- [beam, neighbour], do: Beam.kill(one)
      eventually(fn -> not Enum.any?(guardians, &ProcScan.running?/1) end, 10_000)
      assert Family.members(neighbours) == []
    end
  end

  test "killed in the midst of commands that end, it keeps no caller waiting" do
    beam = Beam.start()
    interrupt = fn -> Beam.call(beam, Disasters, :interrupt, [:kill_guardian]) end
    answers = for _ <- 1..@rounds, answer <- interrupt.(), do: answer
    assert Enum.uniq(answers) -- [:ended, :guardian_down] == []
    # Otherwise it was killed when nobody needed it.
    assert :guardian_down in answers
    Beam.kill(beam)
  end

  test "who starts something at the moment of its death gets it from the next one" do
    beam = Beam.start()

    start = fn -> Beam.call(beam, Disasters, :start_at_its_death) end
    answers = for _ <- 1..@rounds, answer <- start.(), do: answer
    # One that has its process already, when the news comes, loses it.
    served =
      Enum.reject(answers, &match?({:error, %{operation: :run, reason: :guardian_down}}, &1))

    assert Enum.all?(served, &match?({:ok, %{status: 0, stdout: "here\n"}}, &1))
    Beam.kill(beam)
  end

  test "an application that stops keeps no caller waiting either" do
    beam = Beam.start()

    for _ <- 1..@rounds do
      answers = Beam.call(beam, Disasters, :interrupt, [:stop_application])
      refute :hangs in answers
      assert length(answers) == 50
      assert Beam.run(beam, "Application.ensure_all_started(:snakepit)") == {:ok, [:snakepit]}
    end

    Beam.kill(beam)
  end

  test "a server that is killed keeps no owner waiting, and leaves nothing to its successor" do
    # Long enough to be noticed by whoever does not wait for it.
    beam = Beam.start(watchdog: [grace_period_ms: 1_000])
    bystanders = Family.bystanders()
    nothing = [messages: [], monitors: []]

    for _ <- 1..@rounds do
      token = Family.token()
      :ok = Beam.call(beam, Disasters, :start_owners, [token])
      eventually(fn -> length(Family.members(token)) == 16 end)

      old = Beam.call(beam, Disasters, :kill_server)
      assert Family.members(token) == []
      refute ProcScan.running?(old)

      down = :guardian_down
      assert Beam.call(beam, Disasters, :heard) == [down, down, {down, nothing}, {down, nothing}]
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
