defmodule Snakepit.Pool.Callers do
  @moduledoc false

  # The callers that wait, in lines: one for any worker, and one for each worker that somebody waits for in
  # particular. All of them have a turn, so it can be told who came first, whatever the line.

  alias __MODULE__.Caller

  defmodule Caller do
    @moduledoc false

    # Who asks for a worker, known by the lease that it would get. `:key` and `:affinity` are of
    # `Snakepit.Pool.with_worker/3`. `:turn` is when it came, and `:timeout` is for whoever has a clock.

    @enforce_keys [:lease, :from]
    defstruct [:lease, :from, :key, :turn, affinity: :hint, timeout: :infinity]

    @type t :: %__MODULE__{
            lease: reference(),
            from: term(),
            key: term(),
            affinity: :hint | :strict | :fail_fast,
            turn: pos_integer() | nil,
            timeout: timeout()
          }
  end

  defstruct lines: %{any: :gb_trees.empty()}, waiting: %{}

  @type line :: :any | pos_integer()
  @type t :: %__MODULE__{
          lines: %{line() => :gb_trees.tree(pos_integer(), Caller.t())},
          waiting: %{reference() => {line(), pos_integer()}}
        }

  @doc "Returns how many callers wait."
  @spec count(t()) :: non_neg_integer()
  def count(%__MODULE__{waiting: waiting}), do: map_size(waiting)

  @doc "Returns how many callers wait in a line."
  @spec count(t(), line()) :: non_neg_integer()
  def count(%__MODULE__{lines: lines}, line) do
    case lines do
      %{^line => tree} -> :gb_trees.size(tree)
      _nobody -> 0
    end
  end

  @doc "Puts a caller in a line, by its turn."
  @spec add(t(), line(), Caller.t()) :: t()
  def add(%__MODULE__{} = callers, line, %Caller{turn: turn, lease: lease} = caller) do
    tree = Map.get_lazy(callers.lines, line, &:gb_trees.empty/0)
    lines = Map.put(callers.lines, line, :gb_trees.insert(turn, caller, tree))
    %{callers | lines: lines, waiting: Map.put(callers.waiting, lease, {line, turn})}
  end

  @doc "Takes out who came first of those who wait for this worker or for any. Returns `:none` if there is none."
  @spec next(t(), pos_integer()) :: {Caller.t(), t()} | :none
  def next(%__MODULE__{lines: lines} = callers, number) do
    case {first(lines[:any]), first(lines[number])} do
      {:none, :none} -> :none
      {any, own} when any < own -> take(callers, :any)
      {_any, _own} -> take(callers, number)
    end
  end

  # An atom is more than any number.
  defp first(nil), do: :none
  defp first(tree), do: if(:gb_trees.is_empty(tree), do: :none, else: smallest(tree))

  defp smallest(tree) do
    {turn, _caller} = :gb_trees.smallest(tree)
    turn
  end

  defp take(callers, line) do
    {_turn, caller, tree} = :gb_trees.take_smallest(callers.lines[line])
    waiting = Map.delete(callers.waiting, caller.lease)
    {caller, %{callers | lines: put_line(callers.lines, line, tree), waiting: waiting}}
  end

  @doc "Takes out all who wait for one worker, in their order."
  @spec take_all(t(), pos_integer()) :: {[Caller.t()], t()}
  def take_all(%__MODULE__{} = callers, number) do
    {tree, lines} = Map.pop_lazy(callers.lines, number, &:gb_trees.empty/0)
    taken = :gb_trees.values(tree)

    {taken,
     %{callers | lines: lines, waiting: Map.drop(callers.waiting, Enum.map(taken, & &1.lease))}}
  end

  @doc "Removes a caller. Returns it, if it waits."
  @spec drop(t(), reference()) :: {Caller.t() | nil, t()}
  def drop(%__MODULE__{} = callers, lease) do
    case Map.pop(callers.waiting, lease) do
      {nil, _waiting} ->
        {nil, callers}

      {{line, turn}, waiting} ->
        {caller, tree} = :gb_trees.take(turn, callers.lines[line])
        {caller, %{callers | lines: put_line(callers.lines, line, tree), waiting: waiting}}
    end
  end

  defp put_line(lines, line, tree) do
    if line != :any and :gb_trees.is_empty(tree),
      do: Map.delete(lines, line),
      else: Map.put(lines, line, tree)
  end
end
