defmodule Snakepit.Ledger.SealTest do
  use ExUnit.Case, async: true

  alias Snakepit.{Run, RunState}
  alias Snakepit.Ledger.Seal
  alias Snakepit.Pool.PIDLedger
  alias Snakepit.Test.Bytes

  test "a term comes back, and a changed one does not" do
    sealed = Seal.seal(%{run_id: "abc", found: 3})
    assert Seal.open(sealed) == {:ok, %{run_id: "abc", found: 3}}

    for position <- 0..(byte_size(sealed) - 1) do
      assert Seal.open(Bytes.flip(sealed, position, 1)) == :error
    end
  end

  # Where modules are loaded when they are first called, an atom may be unknown to the BEAM that reads it.
  test "every atom of what is recorded is part of the vocabulary" do
    recorded = [Run.current!().record, PIDLedger.all(), RunState.history()]
    assert recorded |> atoms() |> Enum.uniq() |> Enum.reject(&(&1 in Seal.vocabulary())) == []
  end

  defp atoms(%{} = map), do: map |> Map.to_list() |> atoms()
  defp atoms(list) when is_list(list), do: Enum.flat_map(list, &atoms/1)
  defp atoms(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> atoms()
  defp atoms(atom) when is_atom(atom), do: [atom]
  defp atoms(_other), do: []
end
