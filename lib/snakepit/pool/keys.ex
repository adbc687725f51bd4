defmodule Snakepit.Pool.Keys do
  @moduledoc false

  # Which worker a key belongs to. Keys are any terms of the callers', so there may be no end of them: beyond
  # a number of keys the one that was not used for longest is forgotten.

  @enforce_keys [:most]
  defstruct [:most, turn: 0, bound: %{}, of: %{}, ages: :gb_trees.empty()]

  @typedoc "`bound` has the slot and the last use of each key, `of` the keys of each slot, `ages` the keys by their last use."
  @type t :: %__MODULE__{
          most: pos_integer(),
          turn: non_neg_integer(),
          bound: %{term() => {pos_integer(), pos_integer()}},
          of: %{pos_integer() => %{term() => true}},
          ages: :gb_trees.tree(pos_integer(), term())
        }

  @doc "Returns no keys, of which there may be so many."
  @spec new(pos_integer()) :: t()
  def new(most), do: %__MODULE__{most: most}

  @doc "Returns the slot that a key belongs to, or `nil`."
  @spec slot(t(), term()) :: pos_integer() | nil
  def slot(%__MODULE__{bound: bound}, key) do
    case bound do
      %{^key => {number, _turn}} -> number
      _unbound -> nil
    end
  end

  @doc "Notes that a key was used. It belongs to this slot if it belongs to none."
  @spec touch(t(), term(), pos_integer()) :: t()
  def touch(%__MODULE__{} = keys, key, number) do
    case keys.bound do
      %{^key => {bound, turn}} -> keys |> unbind(key, bound, turn) |> bind(key, bound)
      _unbound -> keys |> make_room() |> bind(key, number)
    end
  end

  @doc "Forgets all keys of a slot."
  @spec forget(t(), pos_integer()) :: t()
  def forget(%__MODULE__{of: of} = keys, number) when is_map_key(of, number) do
    Enum.reduce(of[number], keys, fn {key, true}, keys ->
      {^number, turn} = keys.bound[key]
      unbind(keys, key, number, turn)
    end)
  end

  def forget(keys, _number), do: keys

  defp make_room(%{most: most, bound: bound} = keys) when map_size(bound) < most, do: keys

  defp make_room(keys) do
    {turn, key} = :gb_trees.smallest(keys.ages)
    {number, ^turn} = keys.bound[key]
    unbind(keys, key, number, turn)
  end

  defp bind(keys, key, number) do
    turn = keys.turn + 1

    %{
      keys
      | turn: turn,
        bound: Map.put(keys.bound, key, {number, turn}),
        of: Map.update(keys.of, number, %{key => true}, &Map.put(&1, key, true)),
        ages: :gb_trees.insert(turn, key, keys.ages)
    }
  end

  defp unbind(keys, key, number, turn) do
    others = Map.delete(keys.of[number], key)

    %{
      keys
      | bound: Map.delete(keys.bound, key),
        of:
          if(others == %{}, do: Map.delete(keys.of, number), else: %{keys.of | number => others}),
        ages: :gb_trees.delete(turn, keys.ages)
    }
  end
end
