defmodule Snakepit.Cluster.Lease.Majority do
  @moduledoc """
  The lease of a majority of the members that `config :snakepit, cluster: [members: ...]` names.

  `Snakepit.Cluster.Singleton` uses it unless told otherwise, and its documentation says what it promises.
  """

  @behaviour Snakepit.Cluster.Lease

  use GenServer

  require Logger

  alias Snakepit.{Config, ProcessLabel}
  alias Snakepit.Cluster.{Lease, Member, Wire}
  alias Snakepit.Cluster.Lease.Holder

  @enforce_keys [:id, :owner, :holder]
  defstruct [:id, :owner, :holder, :timer, told: MapSet.new()]

  @impl Lease
  def start_link(opts) do
    %{members: members, lease: lease} = Config.current().cluster
    GenServer.start_link(__MODULE__, {opts[:id], opts[:owner], members, lease})
  end

  @impl Lease
  def release(lease), do: GenServer.call(lease, :release)

  @impl GenServer
  def init({id, owner, members, lease}) do
    ProcessLabel.set({__MODULE__, id})
    {:ok, arm(%__MODULE__{id: id, owner: owner, holder: Holder.new(members, lease, 0)}, 0)}
  end

  @impl GenServer
  def handle_call(:release, _from, state),
    do: {:reply, :ok, act(state, Holder.release(state.holder))}

  @impl GenServer
  def handle_info({:timeout, timer, :tick}, %{timer: timer} = state),
    do: {:noreply, act(state, Holder.tick(state.holder, Lease.now()))}

  def handle_info({Wire, version, content}, state) do
    if version == Wire.version(),
      do: {:noreply, hear(content, state)},
      else: {:noreply, state}
  end

  def handle_info(_stray, state), do: {:noreply, state}

  defp hear({:granted, member, token, sent, number}, state) do
    holder = Holder.seen(state.holder, number)
    act(state, Holder.granted(holder, Lease.now(), member, token, sent))
  end

  defp hear({:refused, member, _token, {:version, theirs}, _number}, state) do
    unless MapSet.member?(state.told, member) do
      Logger.warning(
        "Snakepit: #{member} grants no leases to #{node()}: it speaks version #{theirs} of the protocol, and this node " <>
          "#{Wire.version()}; run one version of Snakepit on all nodes"
      )
    end

    %{state | told: MapSet.put(state.told, member)}
  end

  defp hear({:refused, member, token, why, number}, state) do
    holder = Holder.seen(state.holder, number)
    act(state, Holder.refused(holder, member, token, why))
  end

  defp hear({:free, _member, number}, state),
    do: act(state, Holder.free(Holder.seen(state.holder, number)))

  defp hear(_malformed, state), do: state

  defp act(state, {holder, actions}) do
    Enum.reduce(actions, %{state | holder: holder}, &perform/2)
  end

  # The time is that of each message: the first may take a while.
  defp perform({:send, member, operation, token}, state) do
    content = {operation, state.id, token, state.holder.lease, Lease.now()}
    Wire.request({Member, member}, content, self())
    state
  end

  defp perform({:timer, ms}, state), do: arm(state, ms)

  defp perform(news, state) do
    send(state.owner, {Lease, self(), news})
    state
  end

  defp arm(state, ms) do
    if state.timer, do: :erlang.cancel_timer(state.timer)
    %{state | timer: :erlang.start_timer(ms, self(), :tick)}
  end
end
