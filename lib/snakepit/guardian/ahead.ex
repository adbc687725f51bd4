defmodule Snakepit.Guardian.Ahead do
  @moduledoc false

  # Children that were forked before anybody asked for them, and wait at the gate. The ledger has each of them
  # before a caller gets it, several in one entry. So a start does not wait for the disk, and the next BEAM
  # knows every process that may execute a program.

  alias Snakepit.Error
  alias Snakepit.Guardian.State
  alias Snakepit.Ledger.Journal
  alias Snakepit.Run

  @type child :: {id :: pos_integer(), os_pid :: pos_integer(), identity :: binary()}

  @doc "Notes that no child of an earlier guardian of the run is left."
  @spec forget_all(Run.t()) :: :ok | {:error, Error.t()}
  def forget_all(run), do: Journal.note(run.journal, {:children, [], :all})

  @doc "Adds a child. It can be had when it is recorded."
  @spec add(State.t(), child()) :: State.t()
  def add(state, child), do: record(%{state | unrecorded: [child | state.unrecorded]})

  @doc "Removes a child that has ended at the gate, if it was not given away."
  @spec remove(State.t(), pos_integer()) :: State.t()
  def remove(state, id) do
    keep? = fn {child, _os_pid, _identity} -> child != id end
    recording = with {tag, children} <- state.recording, do: {tag, Enum.filter(children, keep?)}
    unrecorded = Enum.filter(state.unrecorded, keep?)

    %{
      state
      | ready: :queue.filter(keep?, state.ready),
        unrecorded: unrecorded,
        recording: recording
    }
  end

  @doc "Notes that a child and its tree are gone. The next record of children tells the ledger."
  @spec gone(State.t(), binary()) :: State.t()
  def gone(state, identity), do: %{state | gone: [identity | state.gone]}

  @doc "Begins to record those that are not, unless others are being recorded. See `recorded/2`."
  @spec record(State.t()) :: State.t()
  def record(%{recording: nil, unrecorded: [_ | _]} = state) do
    tag = make_ref()
    children = Enum.reverse(state.unrecorded)
    identities = for {_id, _os_pid, identity} <- children, do: identity
    Journal.begin_append(state.run.journal, {:children, identities, state.gone}, tag)
    %{state | unrecorded: [], recording: {tag, children}, gone: []}
  end

  def record(state), do: state

  @doc """
  Applies the journal's answer. If the children could not be recorded no caller gets them, and the next request for a
  child tries again.
  """
  @spec recorded(State.t(), Journal.answer()) :: {:ok, State.t()} | {:error, Error.t(), State.t()}
  def recorded(%{recording: {_tag, children}} = state, answer) do
    state = %{state | recording: nil}

    case Journal.appended(answer) do
      :ok ->
        ready = Enum.reduce(children, state.ready, &:queue.in/2)
        {:ok, record(%{state | ready: ready})}

      {:error, error} ->
        unrecorded = state.unrecorded ++ Enum.reverse(children)
        {:error, %{error | operation: :spawn}, %{state | unrecorded: unrecorded}}
    end
  end
end
