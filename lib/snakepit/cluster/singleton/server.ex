defmodule Snakepit.Cluster.Singleton.Server do
  @moduledoc false

  # The process of a `Snakepit.Cluster.Singleton`: has a worker while it has the lease, and passes every renewal on to the
  # guardian, which ends the process of the worker when none comes.

  use GenServer

  require Logger

  alias Snakepit.{Error, Guardian, ProcessLabel, Worker}
  alias Snakepit.Cluster.Lease
  alias Snakepit.Cluster.Lease.Rules
  alias Snakepit.Pool.ProcessRegistry

  # The part of a lease in which the process is asked to end before it is killed.
  @asking 5

  # In the report of a crash: not the options of the worker, whose environment may hold secrets.
  @derive {Inspect, only: [:token, :worker]}
  @enforce_keys [:options, :lease]
  defstruct [
    :options,
    :lease,
    # Of the lease that it has, or had last: its number for the guardian, and when the process is asked to end.
    :number,
    :ask_at,
    :ending,
    :asking,
    :worker,
    token: 0
  ]

  @impl true
  def init(options) do
    Process.flag(:trap_exit, true)
    ProcessLabel.set({Snakepit.Cluster.Singleton, options.id})
    {module, opts} = options.lease

    with {:ok, lease} <- module.start_link([id: options.id, owner: self()] ++ opts),
         do: {:ok, %__MODULE__{options: options, lease: lease}}
  end

  @impl true
  def handle_call(:info, _from, %{worker: nil} = state), do: {:reply, :waiting, state}

  def handle_call(:info, _from, state),
    do: {:reply, {:running, Map.take(state, [:token, :worker])}, state}

  @impl true
  def handle_info({Lease, lease, news}, %{lease: lease} = state),
    do: {:noreply, hear(news, state)}

  def handle_info({:EXIT, worker, reason}, %{worker: worker} = state) when worker != nil,
    do: ended(reason, state)

  def handle_info({:EXIT, lease, reason}, %{lease: lease} = state), do: {:stop, reason, state}
  # A supervisor's end of this process.
  def handle_info({:EXIT, _parent, reason}, state), do: {:stop, reason, state}
  def handle_info(_news_of_the_worker, state), do: {:noreply, state}

  # Order: a lease that was given back may have been renewed a moment before, which is heard now. That is over.
  defp hear({:held, token, until}, %{worker: nil, token: last} = state) when token > last,
    do: begin(state, token, until)

  defp hear({:held, token, until}, %{worker: worker, token: token} = state) when worker != nil,
    do: renew(state, until)

  # The guardian has ended it, or is about to. Its exit follows.
  defp hear(:lost, %{worker: worker} = state) when worker != nil do
    Process.exit(worker, :lease_lost)
    state
  end

  defp hear(_late, state), do: state

  # Order: the guardian knows the lease before it is asked to start something under it.
  defp begin(state, token, until) do
    left = until - Lease.now()
    number = System.unique_integer([:positive])
    asking = min(state.options.stop_timeout, div(max(left, 0), @asking))
    state = %{state | number: number, token: token, ending: Rules.ending(left), asking: asking}
    state = renew(state, until)
    {:ok, worker} = Worker.start_link(worker_options(state), self())
    %{state | worker: worker}
  end

  defp worker_options(%{options: options} = state) do
    env = Enum.to_list(Keyword.get(options.worker, :env, [])) ++ fencing(state)
    Keyword.merge(options.worker, env: env, lease: state.number)
  end

  # Those of `Lease.Global` count what one process has had, and fence nothing off.
  defp fencing(%{options: %{lease: {Lease.Global, _opts}}}), do: []
  defp fencing(state), do: [{"SNAKEPIT_FENCING_TOKEN", Integer.to_string(state.token)}]

  defp renew(state, until) do
    kill_at = max(until - state.ending, 0)
    ask_at = max(kill_at - state.asking, 0)
    Guardian.renew_lease(state.number, ask_at, kill_at)
    %{state | ask_at: ask_at}
  end

  defp ended(reason, state) do
    over? = Lease.now() >= state.ask_at or reason == :lease_lost

    case {dead?(reason, state), over?} do
      {false, _over?} ->
        # Nothing is given back: the lease runs out by itself.
        {:stop, {:shutdown, {:not_known_to_be_dead, reason}}, %{state | worker: nil}}

      {true, true} ->
        Logger.warning(
          "Snakepit: #{state.options.id} has ended on #{node()}, because its lease was not renewed in time"
        )

        release(state)
        {:noreply, %{state | worker: nil}}

      {true, false} ->
        release(state)
        {:stop, reason, %{state | worker: nil}}
    end
  end

  # Whether the worker has seen the end of its process. One that was killed, or lost its guardian, has not.
  defp dead?(reason, state), do: sure?(reason) and not registered?(state.options.id)

  defp sure?(reason)
       when reason in [:normal, :shutdown, :heartbeat_timeout, :max_packet, :lease_lost],
       do: true

  defp sure?({kind, _how}) when kind in [:exit_status, :exit_signal], do: true
  defp sure?({:shutdown, %Error{reason: reason}}), do: reason not in [:guardian_down, :survivors]
  defp sure?({:shutdown, _reason}), do: true
  defp sure?(_reason), do: false

  # The entry of a process that could not be ended stays.
  defp registered?(id), do: ProcessRegistry.worker_registered?(id)

  defp release(%{options: %{lease: {module, _opts}}} = state), do: module.release(state.lease)

  # The lease is renewed while the process ends, which may take longer than the lease.
  @impl true
  def terminate(_reason, %{worker: nil}), do: :ok

  def terminate(reason, state) do
    Process.exit(state.worker, :shutdown)
    {how, state} = await_end(state)
    if state.lease != nil and dead?(how, state), do: release(state)
    reason
  end

  defp await_end(%{worker: worker, lease: lease} = state) do
    receive do
      {:EXIT, ^worker, how} -> {how, state}
      {Lease, ^lease, news} -> await_end(hear(news, state))
      # Without it there is nothing to be renewed or given back.
      {:EXIT, ^lease, _reason} -> await_end(%{state | lease: nil})
    end
  end
end
