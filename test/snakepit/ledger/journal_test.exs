defmodule Snakepit.Ledger.JournalTest do
  use ExUnit.Case, async: true

  alias Snakepit.Error
  alias Snakepit.Ledger.Journal
  alias Snakepit.Test.Beam

  test "what cannot be read is not stored, and not deleted" do
    directory = Beam.temporary_directory()
    {:ok, journal} = Journal.open(directory)
    :ok = Journal.append(journal, {:gone, "one"})
    # A directory can be opened and not be read, by nobody.
    unreadable = Path.join(directory, "journal.old")
    File.mkdir!(unreadable)

    store = fn entries ->
      send(self(), {:stored, entries})
      :ok
    end

    assert {:error, %Error{operation: :journal_read}} =
             Journal.checkpoint(journal, directory, store)

    refute_received {:stored, _}

    File.rmdir!(unreadable)
    assert :ok = Journal.checkpoint(journal, directory, store)
    assert_received {:stored, [{:gone, "one"}]}
  end
end
