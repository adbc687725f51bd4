defmodule Snakepit.Ledger.TableTest do
  use ExUnit.Case, async: true

  alias Snakepit.Ledger.{DeadRun, Table}

  @record [
    worker_id: "w",
    run_id: "abcdefg",
    status: :active,
    os_pid: 5,
    pgid: 5,
    identity: "identity",
    elixir_pid: "<0.1.0>",
    command: ["sleep", <<255>>],
    spawned_at: 1
  ]

  # As `Snakepit.Ledger.Journal` has it.
  defp entry(changes \\ []) do
    List.to_tuple([:worker | for({key, value} <- @record, do: Keyword.get(changes, key, value))])
  end

  defp read(entries) do
    {:ok, empty} = Table.read(Snakepit.Test.Beam.temporary_directory())
    Table.apply_entries(empty, entries)
  end

  test "the longest grace period is kept, by the journal and by the table" do
    assert read([{:grace, 5_000}, {:grace, 7_000}]).grace == 7_000
    directory = Snakepit.Test.Beam.temporary_directory()
    {:ok, table} = Table.open(make_ref(), directory)
    :ok = Table.store(table, [{:grace, 5_000}, entry()])
    :ok = :dets.close(table)
    assert {:ok, %{grace: 5_000, bad: 0}} = Table.read(directory)
    # A dead run is read from both; what makes no sense is none.
    assert %{grace: 5_000} = DeadRun.read("abcdefg", directory, make_ref())
    {:ok, table} = Table.open(make_ref(), directory)
    :ok = Table.store(table, [{:grace, :nonsense}])
    :ok = :dets.close(table)
    assert %{grace: 0} = DeadRun.read("abcdefg", directory, make_ref())
  end

  test "children that wait at the gate are known until they are gone or have a record of their own" do
    directory = Snakepit.Test.Beam.temporary_directory()
    {:ok, table} = Table.open(make_ref(), directory)
    :ok = Table.store(table, [{:children, ["old"], []}])
    :ok = Table.store(table, [{:children, ["a", "b", "c"], :all}])
    :ok = Table.store(table, [entry(identity: "b"), {:children, ["d"], ["c", "unknown"]}])
    :ok = :dets.close(table)
    assert {:ok, %{children: ["d", "a"], bad: 0}} = Table.read(directory)

    # A dead run is read from both.
    {:ok, journal} = Snakepit.Ledger.Journal.open(directory)
    :ok = Snakepit.Ledger.Journal.append(journal, {:children, ["e"], ["a"]})
    dead = DeadRun.read(@record[:run_id], directory, make_ref())
    assert Enum.sort(DeadRun.identities(dead)) == ["b", "d", "e"]
  end

  test "children that are none are counted, and hide nobody" do
    for nonsense <- [
          {:children, :nonsense, []},
          {:children, ["a" | "b"], []},
          {:children, [1], []},
          {:children, [], :none}
        ] do
      contents = read([{:children, ["a"], []}, nonsense])
      assert {nonsense, contents.bad, contents.children} == {nonsense, 1, ["a"]}
    end
  end

  test "a worker's entry gives its record, whatever bytes its command has" do
    assert %{bad: 0, workers: %{"w" => record}} = read([entry()])
    assert Map.take(record, Keyword.keys(@record)) == Map.new(@record)
  end

  # Of a program that is not this one, or was not as careful. A start that failed over one of these would
  # fail for ever.
  test "an entry with a field that is none is counted, and hides nobody" do
    for {field, values} <- [
          worker_id: [<<255>>, nil, :w, 1],
          run_id: [<<255>>, nil, 1],
          status: [:dead, nil, "active"],
          os_pid: [0x8000000000000000, "5", :five, 1.5],
          pgid: [-0x8000000000000001, %{}],
          identity: [1, [], :identity],
          elixir_pid: [<<255>>, self()],
          command: ["sleep", [:sleep], nil, [["sleep"]]],
          spawned_at: [0x8000000000000000, nil, "now"]
        ],
        value <- values do
      contents = read([entry([{field, value}]), entry(worker_id: "after it")])
      assert {field, value, contents.bad} == {field, value, 1}
      assert Map.keys(contents.workers) == ["after it"]
    end
  end
end
