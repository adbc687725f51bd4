defmodule Snakepit.Ledger.SalvageTest do
  use ExUnit.Case, async: true

  alias Snakepit.RunID
  alias Snakepit.Ledger.{Salvage, Table}
  alias Snakepit.Test.{Beam, Bytes}

  # For each kind of damage. More with SNAKEPIT_LONG=1.
  @cases if System.get_env("SNAKEPIT_LONG"), do: 10_000, else: 500
  # Far beyond its patience, for a busy machine.
  @longest_ms 10_000
  @header_bytes 36

  setup_all do
    seed = ExUnit.configuration()[:seed]
    directory = Beam.temporary_directory()
    run_id = RunID.generate()
    workers = for n <- 1..20, do: worker("worker_#{n}", run_id, n)
    {:ok, table} = Table.open({__MODULE__, run_id}, directory)
    run = %{run_id: run_id, beam: "beam", state: :running}
    # Those that are gone leave their bytes in the file: true once, and known by their seal.
    gone = for n <- 1..5, do: worker("gone_#{n}", run_id, 100 + n)
    :ok = Table.store(table, [{:run, run}, {:guardian, "guardian"} | workers ++ gone])
    :ok = Table.store(table, for({:worker, id, _, _, _, _, _, _, _, _} <- gone, do: {:gone, id}))
    :ok = :dets.close(table)

    {:ok, whole} = Table.read(directory)
    bytes = File.read!(Table.path(directory))
    {:ok, seed: seed, directory: directory, whole: whole, bytes: bytes, run: run}
  end

  # With bytes in it that look like the beginning of an object.
  defp worker(id, run_id, n) do
    identity = <<131, 104, 2, n::64, 131, 104, n>>
    command = ["sleep", <<131, 104, 255>>, String.duplicate("x", n * 7)]
    {:worker, id, run_id, :active, 1000 + n, 1000 + n, identity, "<0.#{n}.0>", command, n}
  end

  # Where each object of the file begins and ends, found by writing it again.
  defp places(bytes, objects) do
    for object <- objects do
      {at, length} = :binary.match(bytes, :erlang.term_to_binary(object))
      {object, at, at + length}
    end
  end

  defp read_damaged(context, bytes) do
    File.write!(Table.path(context.directory), bytes)
    {us, result} = :timer.tc(fn -> Table.read(context.directory) end)
    {div(us, 1000), result}
  end

  # What comes out of a damaged table was in it, as it was.
  defp assert_true(context, bytes, note) do
    {ms, result} = read_damaged(context, bytes)
    assert ms < @longest_ms, note

    case result do
      {:ok, contents} ->
        for {id, record} <- contents.workers,
            do: assert(context.whole.workers[id] == record, note)

        assert contents.run in [nil, context.whole.run], note
        assert contents.guardian in [nil, context.whole.guardian], note
        contents

      {:error, reason} ->
        assert reason == :not_a_table, note
        nil
    end
  end

  # The objects of which no byte has changed, and before which no other was: one that is damaged may
  # end later than it did.
  defp untouched(places, from) do
    # DETS moves objects, and leaves what was there: one may stand in two places.
    Enum.uniq(for {{id, %{worker_id: id}}, _at, stop} <- places, stop <= from, do: id)
  end

  defp all_damages(context, salt, damage) do
    :rand.seed(:exsss, {context.seed, salt, 0})
    {:ok, %{objects: objects, leftovers: leftovers}} = Salvage.read(whole_file(context))
    places = places(context.bytes, leftovers ++ objects)

    for round <- 1..@cases do
      {from, bytes} = damage.(context.bytes)
      note = "seed #{context.seed}, round #{round}, damaged from #{from}"
      contents = assert_true(context, bytes, note)

      if from >= @header_bytes do
        found = Map.keys(contents.workers)
        lost = untouched(places, from) -- found
        assert lost == [], "#{note}: lost #{inspect(lost)}"
      end

      contents
    end
  end

  defp whole_file(context) do
    File.write!(Table.path(context.directory), context.bytes)
    Table.path(context.directory)
  end

  test "a whole table gives all that was stored", context do
    assert Map.keys(context.whole.workers) |> Enum.filter(&(&1 =~ "worker_")) |> length() == 20
    assert context.whole.run == context.run
    assert context.whole.guardian == "guardian"
    assert context.whole.bad == 0
  end

  # Those that come write over parts of those that went; and of one that changed, more than one state
  # may be left.
  test "what DETS has freed is no damage, and does not count against what it holds", context do
    directory = Beam.temporary_directory()
    run_id = RunID.generate()
    :rand.seed(:exsss, {context.seed, 5, 0})
    {:ok, table} = Table.open({__MODULE__, :churn}, directory)

    for round <- 1..60 do
      ids = for n <- 1..40, do: "worker_#{n}"
      workers = for id <- ids, do: worker(id, run_id, :rand.uniform(200))
      :ok = Table.store(table, [{:run, %{run_id: run_id, round: round}} | workers])
      :ok = Table.store(table, for(id <- Enum.take_random(ids, 30), do: {:gone, id}))
      # As a BEAM leaves it that is killed now.
      {:ok, read} = Table.read(directory)
      held = Table.contents(table, directory)
      note = "seed #{context.seed}, round #{round}"
      assert read.bad == 0, note
      assert read.run == held.run, note
      assert Map.take(read.workers, Map.keys(held.workers)) == held.workers, note
    end

    :ok = :dets.close(table)
  end

  test "with changed bytes it gives nothing that was not stored", context do
    seen =
      all_damages(context, 1, fn bytes ->
        at = :rand.uniform(byte_size(bytes)) - 1
        {at, Bytes.overwrite(bytes, at, <<:rand.uniform(256) - 1>>)}
      end)

    assert Enum.any?(seen, &(&1 != nil and &1.bad > 0)), "nothing was damaged"
  end

  test "with a stretch of noise it gives what stands before it", context do
    all_damages(context, 2, fn bytes ->
      at = :rand.uniform(byte_size(bytes)) - 1
      length = min(:rand.uniform(600), byte_size(bytes) - at)
      {at, Bytes.overwrite(bytes, at, random(length))}
    end)
  end

  test "with a part of itself in the wrong place it gives nothing that was not stored", context do
    all_damages(context, 3, fn bytes ->
      [at, source] = for _ <- 1..2, do: :rand.uniform(byte_size(bytes)) - 1
      length = min(:rand.uniform(400), byte_size(bytes) - max(at, source))
      {at, Bytes.overwrite(bytes, at, binary_part(bytes, source, length))}
    end)
  end

  test "cut anywhere it gives what stands before the cut", context do
    all_damages(context, 4, fn bytes ->
      at = :rand.uniform(byte_size(bytes) + 1) - 1
      {at, binary_part(bytes, 0, at)}
    end)
  end

  # The longest way through the file for the least that is found.
  @tag :long
  test "beginnings of objects without an end do not take for ever", context do
    header = binary_part(context.bytes, 0, @header_bytes)

    for beginning <- [
          <<131, 104>>,
          <<131, 104, 255>>,
          <<131, 104, 1, 105, -1::32>>,
          <<131, 104, 1, 108, -1::32>>,
          <<131, 104, 1, 109, -1::32>>,
          <<131, 104, 1, 111, -1::32>>,
          <<131, 104, 1, 116, -1::32>>
        ] do
      bytes = header <> String.duplicate(beginning, div(1_000_000, byte_size(beginning)))
      contents = assert_true(context, bytes, inspect(beginning))
      assert contents.workers == %{}
    end
  end

  # From the seed, unlike the bytes that the OS gives.
  defp random(length), do: for(_ <- 1..length//1, into: "", do: <<:rand.uniform(256) - 1>>)
end
