defmodule Snakepit.Cluster.Lease.Global do
  @moduledoc false

  # What `Snakepit.Cluster.OncePerPartition` has in the place of a lease: a name of `:global`, which each part of a divided
  # network has for itself. So the process exists once in each part.

  @behaviour Snakepit.Cluster.Lease

  use GenServer

  alias Snakepit.Cluster.Lease
  alias Snakepit.ProcessLabel

  # How long the process lives on when its BEAM hangs, and how often the BEAM says that it does not.
  @length_ms 5_000
  @interval_ms 1_250
  @retry_ms 1_000

  @enforce_keys [:name, :owner]
  defstruct [:name, :owner, :other, :timer, token: 0, held?: false]

  @impl Lease
  def start_link(opts), do: GenServer.start_link(__MODULE__, {opts[:id], opts[:owner]})

  @impl Lease
  def release(lease), do: GenServer.call(lease, :release, :infinity)

  @impl GenServer
  def init({id, owner}) do
    ProcessLabel.set({__MODULE__, id})
    {:ok, arm(%__MODULE__{name: {__MODULE__, id}, owner: owner}, 0)}
  end

  @impl GenServer
  def handle_call(:release, _from, state) do
    if state.held?, do: :global.unregister_name(state.name)
    {:reply, :ok, arm(%{state | held?: false}, @retry_ms)}
  end

  @impl GenServer
  def handle_info({:timeout, timer, :tick}, %{timer: timer} = state), do: {:noreply, tick(state)}

  # `:global` has found another one when two parts were joined, and that one stays.
  def handle_info({:global_name_conflict, _name, _other}, state),
    do: {:noreply, tick(%{state | held?: false} |> tell(:lost))}

  def handle_info({:DOWN, other, :process, _pid, _reason}, %{other: other} = state),
    do: {:noreply, tick(%{state | other: nil})}

  def handle_info(_stray, state), do: {:noreply, state}

  defp tick(%{held?: true} = state), do: state |> hold() |> arm(@interval_ms)

  defp tick(state) do
    case :global.register_name(state.name, self(), &:global.random_notify_name/3) do
      :yes ->
        tick(%{state | held?: true, token: state.token + 1})

      :no ->
        # Its end is heard of at once; the timer is for a name that has changed hands.
        if state.other, do: Process.demonitor(state.other, [:flush])
        other = :global.whereis_name(state.name)
        monitor = if is_pid(other), do: Process.monitor(other)
        arm(%{state | other: monitor}, @retry_ms)
    end
  end

  defp hold(state), do: tell(state, {:held, state.token, Lease.now() + @length_ms})

  defp tell(state, news) do
    send(state.owner, {Lease, self(), news})
    state
  end

  defp arm(state, ms) do
    if state.timer, do: :erlang.cancel_timer(state.timer)
    %{state | timer: :erlang.start_timer(ms, self(), :tick)}
  end
end
