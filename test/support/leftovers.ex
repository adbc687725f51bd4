defmodule Snakepit.Test.Leftovers do
  @moduledoc """
  What calls may leave behind in this BEAM: pipes, processes, and messages and monitors of the caller. What is there
  before a call is noted, and afterwards there is nothing else.
  """

  import ExUnit.Assertions
  import Snakepit.Test.Eventually

  alias Snakepit.Test.OpenFiles

  @doc "What there is now."
  def note, do: %{pipes: pipes(), processes: Process.list(), mailbox: mailbox()}

  @doc "Flunks if there is anything new. Who has been told to end may still be on its way out."
  def assert_none(before) do
    assert mailbox() == before.mailbox
    eventually(fn -> pipes() -- before.pipes == [] end)
    eventually(fn -> Enum.all?(Process.list() -- before.processes, &elsewhere?/1) end)
  end

  # The runtime's own come and go, and are not children of a test.
  defp elsewhere?(pid) do
    case Process.info(pid, [:dictionary, :initial_call]) do
      nil ->
        true

      [dictionary: dictionary, initial_call: call] ->
        call != {:erlang, :apply, 2} or Keyword.has_key?(dictionary, :"$initial_call")
    end
  end

  defp mailbox, do: Process.info(self(), [:messages, :monitors])

  defp pipes, do: OpenFiles.matching(~r/^pipe:/)
end
