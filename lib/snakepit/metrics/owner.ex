defmodule Snakepit.Metrics.Owner do
  @moduledoc false

  # Has the table of `Snakepit.Metrics.Store`, where an application starts it as a child.

  use GenServer

  alias Snakepit.Metrics.Store

  @impl true
  def init(options) do
    # For `terminate/2`.
    Process.flag(:trap_exit, true)

    # The configuration may have begun, before anything else.
    case Store.current() do
      nil -> {:ok, Store.create(options)}
      store -> if Store.alive?(store), do: :ignore, else: {:ok, Store.create(options)}
    end
  end

  @impl true
  def terminate(_reason, store), do: Store.delete(store)
end
