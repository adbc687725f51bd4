defmodule Snakepit.Pool.Directory do
  @moduledoc false

  # The pools of this BEAM: the process of each, and what the ids of its workers begin with. For those who want to
  # know of all pools; a pool itself has no use for it.

  @doc "Creates the table. The caller owns it."
  def create_table, do: :ets.new(__MODULE__, [:named_table, :public, read_concurrency: true])

  @doc "Enters the calling process, with the `Snakepit.Adapter` of its workers, if they have one."
  @spec enter(String.t(), module() | nil) :: true
  def enter(prefix, adapter),
    do: with_table(fn -> :ets.insert(__MODULE__, {self(), prefix, adapter}) end, true)

  @doc "Removes the calling process. One that is killed is removed by whoever finds it gone."
  @spec leave() :: true
  def leave, do: with_table(fn -> :ets.delete(__MODULE__, self()) end, true)

  @doc "Returns what the ids of a pool's workers begin with; `nil` if it is no pool of this BEAM."
  @spec prefix(pid()) :: String.t() | nil
  def prefix(pid) do
    case with_table(fn -> :ets.lookup(__MODULE__, pid) end, []) do
      [{_pid, prefix, _adapter}] -> prefix
      [] -> nil
    end
  end

  @doc "Returns the adapter of a pool's workers; `nil` if they have none, `:error` if it is no pool of this BEAM."
  @spec adapter(pid()) :: {:ok, module() | nil} | :error
  def adapter(pid) do
    case with_table(fn -> :ets.lookup(__MODULE__, pid) end, []) do
      [{_pid, _prefix, adapter}] -> {:ok, adapter}
      [] -> :error
    end
  end

  @doc "Returns all pools that run."
  @spec all() :: [{pid(), String.t()}]
  def all do
    pools = with_table(fn -> :ets.tab2list(__MODULE__) end, [])
    {alive, gone} = Enum.split_with(pools, fn {pid, _prefix, _adapter} -> Process.alive?(pid) end)
    for {pid, _, _} <- gone, do: with_table(fn -> :ets.delete(__MODULE__, pid) end, true)
    for {pid, prefix, _adapter} <- alive, do: {pid, prefix}
  end

  # A pool may outlive the application, and the table does not.
  defp with_table(fun, otherwise) do
    fun.()
  rescue
    ArgumentError -> otherwise
  end
end
