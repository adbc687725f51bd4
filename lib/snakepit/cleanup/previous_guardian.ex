defmodule Snakepit.Cleanup.PreviousGuardian do
  @moduledoc false

  # The guardian of a server that was killed. A server that ends in any other way waits for its guardian. A
  # killed one could not, and its guardian, which takes the closed port for the death of the BEAM, may still
  # be ending processes when the next server starts. So the next server waits for it first.

  alias Snakepit.{Native, OSProcess, Run}
  alias Snakepit.Guardian.Grace
  alias Snakepit.Ledger.RunDirectory

  # What it may take on top of the grace period: its own patience with what it has killed, and the time
  # to write its last word.
  @slack_ms 15_000
  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000

  @doc """
  Notes that a server of this run begins. If it is not the first one, a guardian was lost.
  """
  @spec note_server(Run.t()) :: :ok
  def note_server(run) do
    begun? = match?({id, _lost?} when id == run.id, :persistent_term.get(__MODULE__, nil))
    :persistent_term.put(__MODULE__, {run.id, begun?})
  end

  @doc "Notes that a guardian of this run was lost."
  @spec note_loss(Run.t()) :: :ok
  def note_loss(run), do: :persistent_term.put(__MODULE__, {run.id, true})

  @doc """
  Returns whether a guardian of this run was lost at any time; `true` in doubt. If none was, everything that the run
  has started is below its guardian: no process escapes a subreaper.
  """
  @spec any?(Run.t()) :: boolean()
  def any?(run), do: :persistent_term.get(__MODULE__, nil) != {run.id, false}

  @doc "Notes the guardian of the running server, and protects it from signals."
  @spec note(Run.t(), OSProcess.t()) :: :ok
  def note(run, process) do
    Native.guardian_protect(process.identity, true)
    :persistent_term.put(key(run), process)
  end

  @doc "Clears the note, after the server has waited for its guardian."
  @spec forget(Run.t()) :: boolean()
  def forget(run) do
    expose(run)
    :persistent_term.erase(key(run))
  end

  @doc "Ends the protection of a guardian that is gone or is to be ended."
  @spec expose(Run.t()) :: term()
  def expose(run) do
    with %OSProcess{identity: identity} <- :persistent_term.get(key(run), nil),
         do: Native.guardian_protect(identity, false)
  end

  @doc "Waits until the guardian that was noted is gone. Returns whether one was noted."
  @spec await_end(Run.t(), non_neg_integer()) :: boolean()
  def await_end(run, slack_ms \\ @slack_ms) do
    case :persistent_term.get(key(run), nil) do
      nil ->
        false

      %OSProcess{identity: identity} ->
        expose(run)
        Native.process_await([identity], Grace.longest(run) + slack_ms)
        # A stuck guardian is killed, and the kernel ends its children with it.
        Native.process_stop([identity], :sigkill, 0, @kill_wait_ms)

        # This obituary reports the death of the BEAM, which lives. If it stayed, the next start would read it after
        # a death for which none was written.
        File.rm(RunDirectory.obituary(run.directory))
        forget(run)
    end
  end

  defp key(run), do: {__MODULE__, run.id}
end
