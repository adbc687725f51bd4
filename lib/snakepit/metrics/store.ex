defmodule Snakepit.Metrics.Store do
  @moduledoc false

  # Where what was counted is kept: an array of atomic integers for each worker group and pool, and one for the run.
  # Whoever has something to count adds to them by itself; there is no process in between.
  #
  # The arrays of groups and pools are found by name in a table. There are no more of them than the bound says,
  # whatever names workers have: what comes later is counted for `"other"`. To get an array, a group takes the
  # first number that is free, and whoever tries to take one that has been taken looks who has it. So all who add a
  # group at one time get the same array, and no number is taken twice.

  alias Snakepit.Metrics.Catalogue

  @enforce_keys [:table, :run, :max_groups, :group_by]
  defstruct [:table, :run, :max_groups, :group_by]

  @type t :: %__MODULE__{
          table: :ets.table(),
          run: :atomics.atomics_ref(),
          max_groups: pos_integer(),
          group_by: (String.t() -> String.t()) | nil
        }

  @other "other"
  # So that the bound on groups is one on memory too.
  @longest_label 200

  @doc "Begins to count. The caller owns the table, and counting ends with it."
  @spec create(%{max_groups: pos_integer(), group_by: (String.t() -> String.t()) | nil}) :: t()
  def create(options) do
    table = :ets.new(__MODULE__, [:public, read_concurrency: true])

    for scope <- [:group, :pool], do: :ets.insert(table, {{scope, @other}, new_row(scope)})

    store = %__MODULE__{
      table: table,
      run: new_row(:run),
      max_groups: options.max_groups,
      group_by: options.group_by
    }

    :persistent_term.put(__MODULE__, store)
    store
  end

  @doc "Counts no more."
  @spec delete(t()) :: :ok
  def delete(store) do
    # Order: nobody looks for the table when it has gone.
    :persistent_term.erase(__MODULE__)
    :ets.delete(store.table)
    :ok
  end

  @doc "Returns the store; `nil` if nothing is counted."
  @spec current() :: t() | nil
  def current, do: :persistent_term.get(__MODULE__, nil)

  @doc "Returns whether the store still has its table."
  @spec alive?(t()) :: boolean()
  def alive?(store), do: :ets.info(store.table, :id) != :undefined

  @doc "Returns the row of a group or pool, to count an event in it."
  @spec row(t(), :group | :pool, String.t()) :: :atomics.atomics_ref()
  def row(%__MODULE__{table: table} = store, scope, member) do
    with :none <- find_or_add(store, scope, member) do
      :atomics.add(store.run, Catalogue.place(:metrics_overflows), 1)
      :ets.lookup_element(table, {scope, @other}, 2)
    end
  end

  @doc "Returns what a group or pool is called: by its name, or `\"other\"` if there are too many."
  @spec label(t(), :group | :pool, String.t()) :: String.t()
  def label(store, scope, member),
    do: if(find_or_add(store, scope, member) == :none, do: @other, else: member)

  defp find_or_add(%{table: table} = store, scope, member) do
    case :ets.lookup(table, {scope, member}) do
      [{_key, row}] -> row
      [] -> add(store, scope, member, 1)
    end
  end

  defp add(_store, _scope, member, _number) when byte_size(member) > @longest_label, do: :none
  defp add(%{max_groups: most}, _scope, _member, number) when number > most, do: :none

  defp add(%{table: table} = store, scope, member, number) do
    row = new_row(scope)

    with false <- :ets.insert_new(table, {{scope, number}, member, row}),
         [{_key, other, _row}] when other != member <- :ets.lookup(table, {scope, number}) do
      add(store, scope, member, number + 1)
    else
      true ->
        :ets.insert(table, {{scope, member}, row})
        row

      # Somebody else adds the same group now.
      [{_key, ^member, row}] ->
        row
    end
  end

  @doc "Returns the members of a scope with their rows, by name."
  @spec rows(t(), :run | :group | :pool) :: [{String.t() | nil, :atomics.atomics_ref()}]
  def rows(store, :run), do: [{nil, store.run}]

  def rows(store, scope) do
    [other] = :ets.lookup(store.table, {scope, @other})
    named = :ets.select(store.table, [{{{scope, :"$1"}, :"$2", :"$3"}, [], [{{:"$2", :"$3"}}]}])
    Enum.sort([{@other, elem(other, 1)} | named])
  end

  @doc "Returns the group of a worker, by the user's own function or by its id."
  @spec group(t(), String.t()) :: String.t()
  def group(%__MODULE__{group_by: nil}, worker_id), do: default_group(worker_id)

  def group(%__MODULE__{group_by: group_by}, worker_id) do
    # It is the user's, and it is no worker's fault if it fails.
    case group_by.(worker_id) do
      group when is_binary(group) and group != "" -> group
      _none -> @other
    end
  rescue
    _error -> @other
  end

  @doc """
  Returns a worker's id without the number at its end, which workers of a pool have, and those without an id of their
  own. The name that is made for a pool without one ends in a number too.

      iex> import Snakepit.Metrics.Store, only: [default_group: 1]
      iex> for id <- ["MyApp.Python-12", "MyApp.Python", "pool-17-2", "gpu-1-2"], do: default_group(id)
      ["MyApp.Python", "MyApp.Python", "pool", "gpu-1"]
      iex> for id <- ["12", "-3", "a-b", "a-", ""], do: default_group(id)
      ["12", "other", "a-b", "a-", "other"]

  """
  @spec default_group(String.t()) :: String.t()
  def default_group(worker_id) do
    case without_number(worker_id) do
      "pool-" <> _number = pool -> without_number(pool)
      group -> group
    end
  end

  defp without_number(""), do: @other
  defp without_number(id), do: without_number(id, byte_size(id) - 1, byte_size(id) - 1)

  defp without_number(id, last, at) do
    case :binary.at(id, at) do
      digit when digit in ?0..?9 and at > 0 -> without_number(id, last, at - 1)
      ?- when at == 0 and at < last -> @other
      ?- when at < last -> :binary.part(id, 0, at)
      _other -> id
    end
  end

  defp new_row(scope), do: :atomics.new(Catalogue.width(scope), signed: true)
end
