defmodule Snakepit.Ledger.HistoryTest do
  use ExUnit.Case, async: true

  alias Snakepit.{DataDir, RunID}
  alias Snakepit.Ledger.{History, RunDirectory, Seal}
  alias Snakepit.Test.{Beam, Bytes}

  @ending %{terminated_by: :cleanup, ended_at: 1, found: 0, killed: 0, gone: 0, ambiguous: 0}

  defp close(data_dir, record \\ nil) do
    id = RunID.generate()
    directory = Path.join(data_dir, id)
    File.mkdir!(directory)

    for name <- [
          "lock",
          "journal",
          "journal.old",
          "journal.new",
          "ledger.dets",
          "adopted",
          "adopted.new",
          "obituary",
          "obituary.new",
          "listener"
        ],
        do: File.write!(Path.join(directory, name), "")

    refute RunDirectory.closed?(File.ls!(directory))
    :ok = History.close(directory, record, @ending)
    assert RunDirectory.closed?(File.ls!(directory))
    assert Enum.sort(File.ls!(directory)) == ["history", "lock", "obituary"]
    id
  end

  test "closed runs are listed newest first, however many are closed within one moment" do
    data_dir = Beam.temporary_directory()
    ids = for _ <- 1..5, do: close(data_dir)
    assert Enum.map(History.list(data_dir), & &1.run_id) == Enum.reverse(ids)
    :ok = History.prune(data_dir, 2)
    assert Enum.map(History.list(data_dir), & &1.run_id) == ids |> Enum.reverse() |> Enum.take(2)
    assert length(File.ls!(data_dir)) == 2
    # Who is first goes on from there.
    newest = close(data_dir)
    assert [%{run_id: ^newest} | _] = History.list(data_dir)
    :ok = History.prune(data_dir, 0)
    assert File.ls!(data_dir) == []
  end

  test "what was recorded of a run is kept, but for the identity of its BEAM" do
    data_dir = Beam.temporary_directory()
    id = close(data_dir, %{beam: "x", node: "n", state: :running})

    assert [%{run_id: ^id, node: "n", state: :running, terminated_by: :cleanup} = run] =
             History.list(data_dir)

    refute Map.has_key?(run, :beam)
  end

  test "damaged ones are left out, foreign names too" do
    data_dir = Beam.temporary_directory()
    id = close(data_dir)

    for content <- ["", "garbage", Seal.seal(:foreign), Seal.seal(%{sequence: 1})] do
      File.write!(Path.join([data_dir, id, "history"]), content)
      assert History.list(data_dir) == []
    end

    File.mkdir!(Path.join(data_dir, "not-a-run"))
    File.write!(Path.join(data_dir, "1234567"), "a file")
    assert History.list(data_dir) == []
    assert DataDir.runs(Path.join(data_dir, "none")) == []
  end

  test "one that cannot be written is not closed" do
    data_dir = Beam.temporary_directory()

    assert {:error, :enoent} = History.close(Path.join(data_dir, "gone123"), nil, @ending)
  end

  test "a seal opens what was sealed, and nothing that was changed" do
    sealed = Seal.seal({:a, "b", 3})
    assert Seal.open(sealed) == {:ok, {:a, "b", 3}}

    for at <- 0..(byte_size(sealed) - 1) do
      assert Seal.open(Bytes.flip(sealed, at, 1)) == :error
      assert Seal.open(binary_part(sealed, 0, at)) == :error
    end

    assert Seal.open(:no_binary) == :error
    # An atom that nobody has is not made.
    assert Seal.decode(<<131, 119, 20, "an_atom_nobody_knows">>) == :error
  end
end
