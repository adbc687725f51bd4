defmodule Snakepit.Test.Dialogue do
  @moduledoc """
  Talks to a program at a terminal of ours, as a person would: reads what it says, and then types.
  """

  alias Snakepit.Worker

  defstruct [:worker, :id]

  # For a machine with other work.
  @patience_ms 20_000

  @doc "Starts a worker with a terminal; the caller hears what it writes."
  def start(cmd, terminal \\ [], opts \\ []) do
    id = "dialogue-#{System.unique_integer([:positive])}"
    own = [id: id, cmd: cmd, stdio: {:pty, terminal}, output: {:send, self()}]
    {:ok, worker} = Worker.start_link(own ++ opts)
    %__MODULE__{worker: worker, id: id}
  end

  @doc "Types a text."
  def type(dialogue, text), do: Worker.write(dialogue.worker, text)

  @doc """
  Waits until what has been said since the last time contains the pattern, and gives all of it up to the pattern's end.
  """
  def expect(dialogue, pattern, heard \\ "") do
    case Regex.run(regex(pattern), heard, return: :index) do
      [{at, length} | _groups] ->
        until = at + length
        # Not by a pattern: Elixir 1.20 wants a pin in it, and 1.14 knows none there.
        before = binary_part(heard, 0, until)
        rest = binary_part(heard, until, byte_size(heard) - until)
        if rest != "", do: send(self(), {:unread, dialogue.id, rest})
        before

      nil ->
        expect(dialogue, pattern, heard <> hear(dialogue, heard))
    end
  end

  @doc "All that the program says until its worker is gone, and why that is."
  def listen(dialogue, heard \\ "") do
    worker = dialogue.worker

    receive do
      {:unread, id, data} when id == dialogue.id -> listen(dialogue, heard <> data)
      {Worker, id, {:output, data}} when id == dialogue.id -> listen(dialogue, heard <> data)
      {:EXIT, ^worker, reason} -> {heard, reason}
    after
      @patience_ms -> ExUnit.Assertions.flunk("still there, having said #{inspect(heard)}")
    end
  end

  # Order: what was left over comes before what arrives.
  defp hear(%{id: id}, heard) do
    receive do
      {:unread, ^id, data} -> data
    after
      0 ->
        receive do
          {Worker, ^id, {:output, data}} -> data
        after
          @patience_ms -> ExUnit.Assertions.flunk("only heard: #{inspect(heard)}")
        end
    end
  end

  defp regex(%Regex{} = regex), do: regex
  defp regex(text), do: text |> Regex.escape() |> Regex.compile!()
end
