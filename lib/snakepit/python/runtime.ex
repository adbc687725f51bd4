defmodule Snakepit.Python.Runtime do
  @moduledoc false

  # What all Python pools of this BEAM share: a table of the streams that somebody reads, a supervisor of tasks that run
  # for Python, and the process that knows whose sessions there are.

  use Supervisor

  require Logger

  alias Snakepit.Python.Sessions

  @tasks Module.concat(__MODULE__, Tasks)

  def start_link(_opts), do: Supervisor.start_link(__MODULE__, [], name: __MODULE__)

  @impl true
  def init([]) do
    # Each item of a stream looks its reader up here; each stream is entered once.
    options = [:named_table, :public, read_concurrency: true, write_concurrency: true]
    :ets.new(__MODULE__, options)
    Supervisor.init([{Task.Supervisor, name: @tasks}, Sessions], strategy: :one_for_one)
  end

  @doc "Runs a function in a task, with the calling worker as its argument."
  @spec task((pid() -> term())) :: pid() | nil
  def task(fun) do
    worker = self()

    case Task.Supervisor.start_child(@tasks, fn -> fun.(worker) end) do
      {:ok, pid} -> pid
      _shutting_down -> nil
    end
  catch
    # Snakepit stops.
    :exit, _reason -> nil
  end

  @doc "Calls a function in a task, and logs the error that it returns."
  @spec cast((() -> Snakepit.Python.Caller.result()), String.t()) :: :ok
  def cast(fun, target) do
    task(fn _self ->
      with {:error, error} <- fun.(),
           do: Logger.error("a cast of #{target} has failed: #{Exception.message(error)}")
    end)

    :ok
  end

  @doc "Notes whether the workers of this pool do several calls at a time, and so have several callers."
  @spec note(Snakepit.Pool.pool(), pos_integer()) :: true
  def note(pool, 1), do: :ets.delete(__MODULE__, {:shared, pool})
  def note(pool, _concurrency), do: :ets.insert(__MODULE__, {{:shared, pool}})

  @doc "Whether a worker of this pool has several callers."
  @spec shared?(Snakepit.Pool.pool()) :: boolean()
  def shared?(pool), do: :ets.member(__MODULE__, {:shared, pool})

  @doc "Has the items of a stream sent to the caller, until `leave/1`."
  @spec enter() :: pos_integer()
  def enter do
    id = System.unique_integer([:positive])
    :ets.insert(__MODULE__, {id, self()})
    id
  end

  @doc "No more items of this stream are sent to the caller, and those that were are removed."
  @spec leave(pos_integer()) :: :ok
  def leave(id) do
    :ets.delete(__MODULE__, id)
    flush(id)
  end

  defp flush(id) do
    receive do
      {__MODULE__, ^id, _item} -> flush(id)
    after
      0 -> :ok
    end
  end

  @doc "Passes an item on to whoever reads the stream."
  @spec item(non_neg_integer(), binary()) :: term()
  def item(id, item) do
    case :ets.lookup(__MODULE__, id) do
      [{^id, reader}] -> send(reader, {__MODULE__, id, item})
      # It has gone.
      [] -> :ok
    end
  end
end
