defmodule Snakepit.Guardian.Predecessor do
  @moduledoc false

  # The guardian of a server that was killed. A server that ends in any other way waits for its guardian;
  # this one could not, and its guardian, which takes the closed port for the death of the BEAM, may
  # still be at its work when the next server starts. That one waits for it in its stead.

  alias Snakepit.Guardian.Grace
  alias Snakepit.{Native, Run}

  # What it may take on top of the grace period: its own patience with what it has killed, and the time
  # to write its last word.
  @slack_ms 15_000
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000

  @doc "Notes who it would be."
  @spec note(Run.t(), Native.identity()) :: :ok
  def note(run, identity), do: :persistent_term.put(key(run), identity)

  @doc "There is none: its server has waited for it."
  @spec forget(Run.t()) :: boolean()
  def forget(run), do: :persistent_term.erase(key(run))

  @doc "Waits until it is gone, if there is one. Gives whether there was."
  @spec await_end(Run.t(), non_neg_integer()) :: boolean()
  def await_end(run, slack_ms \\ @slack_ms) do
    case :persistent_term.get(key(run), nil) do
      nil ->
        false

      identity ->
        Native.process_await([identity], Grace.longest(run) + slack_ms)
        # One that is stuck takes its children with it.
        Native.process_stop([identity], :sigkill, 0, @kill_wait_ms)

        # It tells of the death of the BEAM, which lives. It may be read after another death, of which
        # nobody was left to write.
        File.rm(Path.join(run.directory, "obituary"))
        forget(run)
    end
  end

  defp key(run), do: {__MODULE__, run.id}
end
