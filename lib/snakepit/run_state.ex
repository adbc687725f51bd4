defmodule Snakepit.RunState do
  @moduledoc """
  The states of a run, in the only order that there is:

      :initializing → :cleaning_stale → :running → :shutting_down → :terminated

  Each state is recorded before anything is done in it, so a later start knows how far a run came, also after
  `kill -9`. The record is synced to disk before a `:running` run starts anything, and again with its history. So after
  a power loss no run is missing that has started something. `history/0` returns how earlier runs ended:

      iex> Snakepit.RunState.current()
      :running
      iex> is_list(Snakepit.RunState.history())
      true

  """

  alias Snakepit.{Error, Run}
  alias Snakepit.Ledger.{History, Journal}

  # The only state that may follow each.
  @next %{
    initializing: :cleaning_stale,
    cleaning_stale: :running,
    running: :shutting_down,
    shutting_down: :terminated
  }

  @typedoc "Where a run is in its life."
  @type t :: :initializing | :cleaning_stale | :running | :shutting_down | :terminated

  @doc """
  Returns whether a run may go from one state to the other.

      iex> Snakepit.RunState.valid_transition?(:cleaning_stale, :running)
      true
      iex> Snakepit.RunState.valid_transition?(:initializing, :running)
      false

  """
  @spec valid_transition?(term(), term()) :: boolean()
  def valid_transition?(from, to), do: Map.fetch(@next, from) == {:ok, to}

  @doc """
  Returns the new state, if a run may take that step.

      iex> Snakepit.RunState.transition(:running, :shutting_down)
      {:ok, :shutting_down}
      iex> {:error, error} = Snakepit.RunState.transition(:terminated, :running)
      iex> Exception.message(error)
      "transition failed: a run does not go from :terminated to :running"

  """
  @spec transition(t(), t()) :: {:ok, t()} | {:error, Error.t()}
  def transition(from, to) do
    if valid_transition?(from, to) do
      {:ok, to}
    else
      detail = "a run does not go from #{inspect(from)} to #{inspect(to)}"
      {:error, %Error{operation: :transition, reason: :invalid_transition, detail: detail}}
    end
  end

  @doc "As `transition/2`, but returns the state itself or raises `Snakepit.Error`."
  @spec transition!(t(), t()) :: t()
  def transition!(from, to) do
    case transition(from, to) do
      {:ok, state} -> state
      {:error, error} -> raise error
    end
  end

  @doc "Returns the state of this run; `nil` if Snakepit is not started."
  @spec current() :: t() | nil
  def current, do: :persistent_term.get(__MODULE__, nil)

  @doc """
  Returns the runs that have ended, newest first, at most `limit` of them:

    * `run_id`, `node`, `beam_pid`
    * `started_at`, `ended_at` - milliseconds since the epoch, by the machine's clock. A run whose BEAM was killed
      has ended when the guardian noticed it. If the guardian was killed as well, or the machine was restarted,
      `ended_at` is when the run last wrote a file, which it does at least at every `:audit_interval_ms`
    * `terminated_by` - `:clean_shutdown`; `:guardian`, which ended everything when the BEAM had died;
      `:cleanup`, by a later start; `:reboot`, which left nothing to end; `:elsewhere`, in a container that
      has ended, or of which nothing has been heard for a week
    * `found`, `killed`, `gone` - processes that were still there, workers and everything below them; those of them
      that did not end when asked; and those that are gone
    * `usage` - what its processes have used, as far as the guardian has waited for them: `user_us` and `system_us`,
      microseconds of CPU time, and `max_rss_kb`, the most memory that one of them had. It is missing if the guardian was
      killed as well, and after a guardian was lost it is that of the last one
    * `state` - how far the run came
    * `clean_shutdown` - whether the application was stopped in order, and left nothing behind

  """
  @spec history(non_neg_integer() | :infinity) :: [map()]
  def history(limit \\ :infinity) do
    runs = History.list(Run.current!().data_dir)
    if limit == :infinity, do: runs, else: Enum.take(runs, limit)
  end

  @doc "Returns a run that has ended, or the current one, by its id."
  @spec fetch(Snakepit.RunID.t()) :: {:ok, map()} | {:error, Error.t()}
  def fetch(run_id) do
    run = Run.current!()

    cond do
      run.id == run_id -> {:ok, Map.put(run.record, :state, current())}
      found = Enum.find(history(), &(&1.run_id == run_id)) -> {:ok, found}
      true -> {:error, %Error{operation: :fetch, reason: :not_found}}
    end
  end

  @doc false
  def start, do: :persistent_term.put(__MODULE__, :initializing)

  @doc false
  def forget do
    :persistent_term.erase(__MODULE__)
    :persistent_term.erase({__MODULE__, :ending})
  end

  # How the run has ended, for the last event of the application.
  @doc false
  def put_ending(ending), do: :persistent_term.put({__MODULE__, :ending}, ending)

  @doc false
  def ending do
    unknown = %{terminated_by: nil, found: 0, killed: 0, ambiguous: 0}
    :persistent_term.get({__MODULE__, :ending}, unknown)
  end

  # Takes the current run to its next state, once that is recorded. Returns its record.
  @doc false
  @spec advance(t(), keyword()) :: {:ok, map()} | {:error, Error.t()}
  def advance(to, fields \\ []) do
    run = Run.current!()

    with {:ok, state} <- transition(current(), to),
         fields = [state: state, changed_at: System.os_time(:millisecond)] ++ fields,
         record = Enum.into(fields, run.record),
         :ok <- Journal.append(run.journal, {:run, record}),
         :ok <- sync(state, run.journal) do
      :persistent_term.put(__MODULE__, state)
      {:ok, record}
    end
  end

  # To wait for the disk takes longer than all the rest of a start. What was written survives this BEAM in
  # any case, and a power loss leaves no process behind.
  defp sync(:running, journal), do: Journal.sync(journal)
  defp sync(_other, _journal), do: :ok

  # A stop goes on whether or not the disk can be told of it.
  @doc false
  @spec shut_down() :: :ok | {:error, Error.t()}
  def shut_down do
    recorded = advance(:shutting_down)
    :persistent_term.put(__MODULE__, :shutting_down)
    with {:ok, _record} <- recorded, do: :ok
  end
end
