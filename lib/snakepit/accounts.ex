defmodule Snakepit.Accounts do
  @moduledoc false

  # Users and groups, by name or number. The account database may be on the network and not answer for
  # minutes, and a call to it occupies one of the few threads that the BEAM has for files. So an answer is
  # kept for a while, two callers with the same question share one call, and few calls run at once.

  use GenServer

  alias Snakepit.Native

  @kept_ms 30_000
  # More than one, so that a name that is in a file does not wait for one that is not.
  @at_once 2
  @most_kept 256
  # What the database may take.
  @patience_ms 30_000

  @type key :: {:user, String.t() | non_neg_integer()} | {:group, String.t()}

  @doc false
  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Returns what `Snakepit.Native` returns for a user or group, now or a short while ago."
  @spec lookup(key()) :: {:ok, term()} | Native.error()
  def lookup(key) do
    case kept(key) do
      [{_key, answer, until}] -> if now() < until, do: answer, else: ask(key)
      [] -> ask(key)
    end
  end

  defp kept(key) do
    :ets.lookup(__MODULE__, key)
  rescue
    # Its process is being started.
    ArgumentError -> []
  end

  defp ask(key) do
    GenServer.call(__MODULE__, key, @patience_ms)
  catch
    :exit, {:timeout, _call} -> {:error, {:etimedout, nil}}
    :exit, _not_there -> native(key)
  end

  @impl true
  def init(_opts) do
    :ets.new(__MODULE__, [:named_table, read_concurrency: true])
    {:ok, %{callers: %{}, helpers: %{}, waiting: :queue.new()}}
  end

  @impl true
  def handle_call(key, from, state) do
    case state.callers do
      %{^key => callers} ->
        {:noreply, put_in(state.callers[key], [from | callers])}

      _nobody ->
        waiting = :queue.in(key, state.waiting)
        {:noreply, start_some(%{put_in(state.callers[key], [from]) | waiting: waiting})}
    end
  end

  @impl true
  def handle_info({:DOWN, helper, :process, _pid, reason}, state) do
    {key, helpers} = Map.pop!(state.helpers, helper)
    {callers, others} = Map.pop!(state.callers, key)
    answer = with {:shutdown, answer} <- reason, do: keep(key, answer)
    for from <- callers, do: GenServer.reply(from, answer)
    {:noreply, start_some(%{state | helpers: helpers, callers: others})}
  end

  defp start_some(state) do
    with true <- map_size(state.helpers) < @at_once,
         {{:value, key}, waiting} <- :queue.out(state.waiting) do
      {_pid, helper} = spawn_monitor(fn -> exit({:shutdown, native(key)}) end)
      start_some(%{put_in(state.helpers[helper], key) | waiting: waiting})
    else
      _nothing_to_start -> state
    end
  end

  # That there is no such account may have changed when somebody asks again.
  defp keep(key, {:ok, _account} = answer) do
    if :ets.info(__MODULE__, :size) >= @most_kept, do: :ets.delete_all_objects(__MODULE__)
    :ets.insert(__MODULE__, {key, answer, now() + @kept_ms})
    answer
  end

  defp keep(_key, error), do: error

  defp native({:user, uid}) when is_integer(uid), do: Native.user_lookup_number(uid)
  defp native({:user, name}), do: Native.user_lookup(name)
  defp native({:group, name}), do: Native.group_lookup(name)

  defp now, do: System.monotonic_time(:millisecond)
end
