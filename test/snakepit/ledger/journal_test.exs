defmodule Snakepit.Ledger.JournalTest do
  use ExUnit.Case, async: true

  alias Snakepit.Error
  alias Snakepit.Ledger.Journal
  alias Snakepit.Test.Beam

  test "what cannot be read is not carried off, and not deleted" do
    directory = Beam.temporary_directory()
    {:ok, journal} = Journal.open(directory)
    :ok = Journal.append(journal, {:gone, "one"})
    # A directory can be opened and not be read, by nobody.
    unreadable = Path.join(directory, "journal.old")
    File.mkdir!(unreadable)

    carried = fn entries -> send(self(), {:carried, entries}) && :ok end
    assert {:error, %Error{operation: :journal_read}} = Journal.carry(journal, directory, carried)
    refute_received {:carried, _}

    File.rmdir!(unreadable)
    assert :ok = Journal.carry(journal, directory, carried)
    assert_received {:carried, [{:gone, "one"}]}
  end
end
