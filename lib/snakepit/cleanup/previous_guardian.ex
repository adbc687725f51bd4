defmodule Snakepit.Cleanup.PreviousGuardian do
  @moduledoc false

  # The guardian of a server that was killed. A server that ends in any other way waits for its guardian;
  # this one could not, and its guardian, which takes the closed port for the death of the BEAM, may
  # still be at its work when the next server starts. That one waits for it in its stead.

  alias Snakepit.{Native, OSProcess, Run}
  alias Snakepit.Guardian.Grace
  alias Snakepit.Ledger.RunDirectory

  # What it may take on top of the grace period: its own patience with what it has killed, and the time
  # to write its last word.
  @slack_ms 15_000
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000

  @doc """
  A server of this run begins. If it is not the first one, a guardian was lost, and what that one knew of.
  """
  @spec note_server(Run.t()) :: :ok
  def note_server(run) do
    begun? = match?({id, _lost?} when id == run.id, :persistent_term.get(__MODULE__, nil))
    :persistent_term.put(__MODULE__, {run.id, begun?})
  end

  @doc "A guardian of this run was lost."
  @spec note_loss(Run.t()) :: :ok
  def note_loss(run), do: :persistent_term.put(__MODULE__, {run.id, true})

  @doc """
  Whether a guardian of this run was lost at any time. If none was, whatever the run has started is below
  the one that it has: nobody gets away from a subreaper. In doubt one was.
  """
  @spec any?(Run.t()) :: boolean()
  def any?(run), do: :persistent_term.get(__MODULE__, nil) != {run.id, false}

  @doc "Notes who it would be. Nobody else may signal it."
  @spec note(Run.t(), OSProcess.t()) :: :ok
  def note(run, process) do
    Native.guardian_protect(process.identity, true)
    :persistent_term.put(key(run), process)
  end

  @doc "There is none: its server has waited for it."
  @spec forget(Run.t()) :: boolean()
  def forget(run) do
    expose(run)
    :persistent_term.erase(key(run))
  end

  @doc "It is gone, or is to be ended. Its pid may be another's before long."
  @spec expose(Run.t()) :: term()
  def expose(run) do
    with %OSProcess{identity: identity} <- :persistent_term.get(key(run), nil),
         do: Native.guardian_protect(identity, false)
  end

  @doc "Waits until it is gone, if there is one. Gives whether there was."
  @spec await_end(Run.t(), non_neg_integer()) :: boolean()
  def await_end(run, slack_ms \\ @slack_ms) do
    case :persistent_term.get(key(run), nil) do
      nil ->
        false

      %OSProcess{identity: identity} ->
        expose(run)
        Native.process_await([identity], Grace.longest(run) + slack_ms)
        # One that is stuck takes its children with it.
        Native.process_stop([identity], :sigkill, 0, @kill_wait_ms)

        # It tells of the death of the BEAM, which lives. It may be read after another death, of which
        # nobody was left to write.
        File.rm(RunDirectory.obituary(run.directory))
        forget(run)
    end
  end

  defp key(run), do: {__MODULE__, run.id}
end
