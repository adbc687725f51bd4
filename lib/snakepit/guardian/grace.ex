defmodule Snakepit.Guardian.Grace do
  @moduledoc false

  # The longest grace period that a process of this run was started with, or that the watchdog gives to
  # processes without one of their own. Whatever waits for the end of everything waits that long.
  #
  # It belongs to the run and not to the server, which may be killed. The ledger has it too, for the next
  # BEAM, which waits for the guardian of this one. It only grows. That costs nothing: when the processes are
  # gone earlier, the guardian ends earlier, and with it the wait.

  alias Snakepit.Ledger.Journal
  alias Snakepit.Run

  @doc "Sets the grace period of a new run to the watchdog's."
  @spec new(non_neg_integer()) :: :atomics.atomics_ref()
  def new(grace_ms) do
    longest = :atomics.new(1, [])
    :atomics.put(longest, 1, grace_ms)
    longest
  end

  @doc "Returns the longest grace period so far; 0 if there is no run."
  @spec longest(Run.t() | nil) :: non_neg_integer()
  def longest(nil), do: 0
  def longest(run), do: :atomics.get(run.grace, 1)

  @doc "Notes the grace period of a process. Only the guardian's server calls this."
  @spec note(Run.t(), non_neg_integer() | nil) :: :ok
  def note(_run, nil), do: :ok

  def note(run, grace_ms) do
    if grace_ms > longest(run) do
      # If it cannot be written, the next BEAM waits for a shorter time, and then sweeps up by itself.
      Journal.append(run.journal, {:grace, grace_ms})
      :atomics.put(run.grace, 1, grace_ms)
    end

    :ok
  end
end
