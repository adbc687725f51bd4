defmodule Snakepit.TwoBeamsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, ProcScan, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  @telemetry Path.expand("../fixtures/telemetry.exs", __DIR__)
  @config [graceful_shutdown_timeout_ms: 300]

  # Each crashes, with its guardian, and starts again; in every order that there is.
  @orders [
    [crash: :a, start: :a, crash: :b, start: :b],
    [crash: :a, crash: :b, start: :a, start: :b],
    [crash: :a, crash: :b, start: :b, start: :a],
    [crash: :b, start: :b, crash: :a, start: :a],
    [crash: :b, crash: :a, start: :b, start: :a],
    [crash: :b, crash: :a, start: :a, start: :b]
  ]

  defp start(data_dir), do: Beam.start([data_dir: data_dir] ++ @config)

  for order <- @orders do
    name = Enum.map_join(order, ", ", fn {what, who} -> "#{what} #{who}" end)

    test "#{name}: neither touches the other's" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      beams = for who <- [:a, :b], into: %{}, do: {who, start(data_dir)}
      families = for {who, beam} <- beams, into: %{}, do: {who, Family.start(beam)}

      {_beams, alive, dead} =
        Enum.reduce(unquote(order), {beams, families, []}, fn
          {:crash, who}, {beams, alive, dead} ->
            Beam.kill_with_guardian(beams[who])
            {family, alive} = Map.pop(alive, who)
            # The shell went with the guardian. The rest has nobody.
            assert length(Family.members(family)) == 4
            assert_alive(alive)
            {beams, alive, [family | dead]}

          {:start, who}, {beams, alive, dead} ->
            beam = start(data_dir)
            # Whoever starts ends what all the dead have left, and nothing of the living.
            for family <- dead, do: assert(Family.members(family) == [])
            assert_alive(alive)
            {Map.put(beams, who, beam), Map.put(alive, who, Family.start(beam)), dead}
        end)

      assert_alive(alive)
      assert map_size(alive) == 2
      for family <- dead, do: assert(Family.members(family) == [])
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  defp assert_alive(families) do
    for {_who, family} <- families, do: assert(length(Family.members(family)) == 4)
  end

  test "two that start at once reap each dead run once, and so do not each other" do
    data_dir = Beam.temporary_directory()
    bystanders = Family.bystanders()
    config = [data_dir: data_dir] ++ @config
    living = start(data_dir)
    living_family = Family.start(living)
    living_id = Beam.run(living, "Snakepit.run_id()")

    dead = for(_ <- 1..4, do: Beam.launch(config)) |> Enum.map(&Beam.await_start/1)
    ids = for beam <- dead, do: Beam.run(beam, "Snakepit.run_id()")
    families = for beam <- dead, do: Family.start(beam)
    for beam <- dead, do: Beam.kill_with_guardian(beam)

    starters = for _ <- 1..2, do: Beam.launch(config, libraries: [@telemetry])
    starters = Enum.map(starters, &Beam.await_start/1)

    reaped =
      for beam <- starters do
        events =
          Beam.run(
            beam,
            "for {[:snakepit, :run, :reaped], _, metadata} <- :telemetry.events(), do: metadata"
          )

        assert Enum.all?(events, &(&1.terminated_by == :cleanup and &1.found == 4))
        for event <- events, do: event.run_id
      end

    assert Enum.sort(List.flatten(reaped)) == Enum.sort(ids)

    # The second to come does not wait for the first, which may still be at it.
    for family <- families, do: assert(Family.members(family) == [])
    assert length(Family.members(living_family)) == 4
    assert Enum.all?(bystanders, &ProcScan.running?/1)
    history = Beam.run(living, "Snakepit.RunState.history()")
    assert Enum.sort(for run <- history, do: run.run_id) == Enum.sort(ids)
    assert living_id not in Enum.map(history, & &1.run_id)
  end

  test "many that start and end at once, all the time, start every time" do
    data_dir = Beam.temporary_directory()
    beams = for(_ <- 1..3, do: Beam.launch(data_dir: data_dir)) |> Enum.map(&Beam.await_start/1)

    # Between the directory of a new run and its lock is the moment at which others find it empty.
    restarts = """
    for _ <- 1..12 do
      :ok = Application.stop(:snakepit)
      {:ok, _} = Application.ensure_all_started(:snakepit)
      Snakepit.run_id()
    end
    """

    for beam <- beams, do: Beam.tell(beam, restarts)
    ids = Enum.flat_map(beams, &Snakepit.Test.BeamPort.value(&1.port))
    assert ids == Enum.uniq(ids)
    assert length(ids) == 36
  end

  test "one whose new directory is removed as an empty one before it has locked it makes another" do
    data_dir = Beam.temporary_directory()
    elsewhere = Path.join(Beam.temporary_directory(), "removed")
    takes_away = {"TAKES_AWAY", "#{data_dir} #{elsewhere}"}
    config = [data_dir: data_dir] ++ @config
    beam = Beam.start(config, env: [Shim.variable("takes_away"), takes_away])

    assert File.ls!(elsewhere) == []
    assert Beam.run(beam, "Snakepit.run_id()") in File.ls!(data_dir)
  end

  test "a run that has lost its lock is left alone while its BEAM lives" do
    data_dir = Beam.temporary_directory()
    living = start(data_dir)
    family = Family.start(living)
    id = Beam.run(living, "Snakepit.run_id()")
    File.rm!(Path.join([data_dir, id, "lock"]))
    other = start(data_dir)
    assert length(Family.members(family)) == 4
    assert Beam.run(other, "Snakepit.RunState.history()") == []
    assert File.exists?(Path.join([data_dir, id, "ledger.dets"]))

    Beam.kill_with_guardian(living)
    third = start(data_dir)
    assert Family.members(family) == []
    assert [%{run_id: ^id}] = Beam.run(third, "Snakepit.RunState.history()")
  end

  test "another instance in the same directory is left alone, dead or alive" do
    data_dir = Beam.temporary_directory()
    one = Beam.start(data_dir: data_dir, instance: "one")
    family = Family.start(one)
    Beam.kill_with_guardian(one)
    other = Beam.start(data_dir: data_dir, instance: "other")
    assert length(Family.members(family)) == 4
    assert Beam.run(other, "Snakepit.RunState.history()") == []
    again = Beam.start(data_dir: data_dir, instance: "one")
    assert Family.members(family) == []
    assert [%{instance: "one", found: 4}] = Beam.run(again, "Snakepit.RunState.history()")
  end
end
