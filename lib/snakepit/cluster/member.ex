defmodule Snakepit.Cluster.Member do
  @moduledoc false

  # One who grants leases: a process on each node that `config :snakepit, cluster: [members: ...]` names. It answers
  # requests, and keeps the nodes that it needs connected. `Lease.Grants` decides.

  use GenServer

  require Logger

  alias Snakepit.{Native, ProcessLabel}
  alias Snakepit.Cluster.Lease.{Grants, Rules}
  alias Snakepit.Cluster.Member.Number
  alias Snakepit.Cluster.Wire

  @prune_ms 60_000
  @longest_id 255

  @enforce_keys [:grants, :stored]
  defstruct [:grants, :stored, told: MapSet.new()]

  def start_link(config), do: GenServer.start_link(__MODULE__, config, name: __MODULE__)

  @impl true
  def init(%{lease: lease}) do
    ProcessLabel.set(__MODULE__)
    stored = Number.read!()
    # What is not on its disk any more may have been granted all the same.
    grants = Grants.new(now(), max(stored.longest, lease), stored.number)
    Process.send_after(self(), :prune, @prune_ms)
    {:ok, %__MODULE__{grants: grants, stored: stored}}
  end

  @impl true
  def handle_info({Wire, version, content, from}, state) when is_pid(from) do
    if version == Wire.version(),
      do: {:noreply, handle(content, from, state)},
      else: {:noreply, refuse_version(state, version, from)}
  end

  def handle_info(:prune, state) do
    Process.send_after(self(), :prune, @prune_ms)
    {:noreply, %{state | grants: Grants.prune(state.grants, now())}}
  end

  def handle_info(_stray, state), do: {:noreply, state}

  defp handle({operation, id, token, lease, sent}, from, state)
       when operation in [:acquire, :renew] and is_binary(id) and byte_size(id) <= @longest_id and
              is_integer(token) and token > 0 and is_integer(lease) and is_integer(sent) do
    {shortest, longest} = Rules.range()

    if lease in shortest..longest,
      do: answer(operation, {id, from, token, lease}, sent, state),
      else: state
  end

  defp handle({:release, id, token, _lease, _sent}, from, state) do
    {waiting, grants} = Grants.release(state.grants, id, from, token)
    for holder <- waiting, do: Wire.send_to(holder, {:free, node(), grants.number})
    %{state | grants: grants}
  end

  # Another node's mistake is none of this one's.
  defp handle(_malformed, _from, state), do: state

  defp answer(operation, {id, from, token, lease}, sent, state) do
    {answer, grants} = apply(Grants, operation, [state.grants, now(), id, from, token, lease])

    # Order: on the disk before the answer. One that cannot be stored is not granted.
    case answer == :granted && store(state.stored, grants.number, lease) do
      {:ok, stored} ->
        Wire.send_to(from, {:granted, node(), token, sent, grants.number})
        %{state | grants: grants, stored: stored}

      {:error, reason} ->
        Logger.error("Snakepit grants no leases: cannot write to the data directory: #{reason}")
        state

      false ->
        {:refused, why} = answer
        Wire.send_to(from, {:refused, node(), token, why, grants.number})
        %{state | grants: grants}
    end
  end

  defp store(stored, number, lease) do
    needed = %{number: max(stored.number, number), longest: max(stored.longest, lease)}

    if needed == stored,
      do: {:ok, stored},
      else: with(:ok <- Number.write(needed), do: {:ok, needed})
  end

  # Once for each node: it asks again and again.
  defp refuse_version(state, version, from) do
    Wire.send_to(from, {:refused, node(), nil, {:version, Wire.version()}, 0})

    unless MapSet.member?(state.told, node(from)) do
      Logger.warning(
        "Snakepit: #{node(from)} gets no leases from #{node()}: it speaks version #{inspect(version)} of the " <>
          "protocol, and this node #{Wire.version()}; run one version of Snakepit on all nodes"
      )
    end

    %{state | told: MapSet.put(state.told, node(from))}
  end

  defp now do
    {:ok, now} = Native.clock_read()
    now
  end
end
