defmodule Snakepit.Cluster.Lease.Grants do
  @moduledoc false

  # What a member has granted, and what it decides, without a process. The same rules as those of `Member` in
  # `native/snakepit_lease`, for many leases. Moments are those of `Snakepit.Native.clock_read/0`.

  # No node can make another keep more than this.
  @most 10_000
  @most_waiting 100

  defstruct [:silent_until, :number, grants: %{}, waiting: %{}]

  @type holder :: term()
  @type t :: %__MODULE__{
          silent_until: integer(),
          number: non_neg_integer(),
          grants: %{
            String.t() => %{holder: holder(), token: pos_integer(), until: integer()}
          },
          waiting: %{String.t() => [holder()]}
        }

  @type answer ::
          :granted
          | {:refused,
             {:taken | :restarted, left_ms :: pos_integer()}
             | {:stale, non_neg_integer()}
             | :full}

  @doc """
  Begins now. What it granted before it restarted it does not know, so it grants nothing for as long as the longest lease
  that it may have granted.
  """
  @spec new(integer(), pos_integer(), non_neg_integer()) :: t()
  def new(now, longest, number), do: %__MODULE__{silent_until: now + longest, number: number}

  @doc "Answers one who wants a lease, with a token that no lease has had."
  @spec acquire(t(), integer(), String.t(), holder(), pos_integer(), pos_integer()) ::
          {answer(), t()}
  def acquire(grants, now, id, holder, token, lease) do
    case refusal(grants, now, id, holder, token) do
      :own -> extend(grants, now, id, holder, token, lease)
      nil when token <= grants.number -> {{:refused, {:stale, grants.number}}, grants}
      nil -> extend(%{grants | number: token}, now, id, holder, token, lease)
      refusal -> {{:refused, refusal}, wait(grants, id, holder)}
    end
  end

  @doc "Answers one who has a lease. Its token need not be the greatest here: in a minority others may have tried."
  @spec renew(t(), integer(), String.t(), holder(), pos_integer(), pos_integer()) ::
          {answer(), t()}
  def renew(grants, now, id, holder, token, lease) do
    case refusal(grants, now, id, holder, token) do
      free when free in [:own, nil] -> extend(grants, now, id, holder, token, lease)
      refusal -> {{:refused, refusal}, grants}
    end
  end

  @doc "Takes a lease back. Returns those who have been refused it, to be told."
  @spec release(t(), String.t(), holder(), pos_integer()) :: {[holder()], t()}
  def release(grants, id, holder, token) do
    case grants.grants do
      %{^id => %{holder: ^holder, token: ^token}} ->
        {waiting, rest} = Map.pop(grants.waiting, id, [])
        {waiting, %{grants | grants: Map.delete(grants.grants, id), waiting: rest}}

      _others ->
        {[], grants}
    end
  end

  @doc "Forgets what is over."
  @spec prune(t(), integer()) :: t()
  def prune(grants, now) do
    kept = for {id, grant} <- grants.grants, grant.until > now, into: %{}, do: {id, grant}
    %{grants | grants: kept, waiting: Map.take(grants.waiting, Map.keys(kept))}
  end

  defp refusal(%{silent_until: silent}, now, _id, _holder, _token) when now < silent,
    do: {:restarted, silent - now}

  defp refusal(%{grants: grants}, now, id, holder, token) do
    case grants do
      %{^id => %{holder: ^holder, token: ^token}} -> :own
      %{^id => %{until: until}} when now < until -> {:taken, until - now}
      %{^id => _over} -> nil
      _none when map_size(grants) >= @most -> :full
      _none -> nil
    end
  end

  defp extend(grants, now, id, holder, token, lease) do
    grant = %{holder: holder, token: token, until: now + lease}
    {:granted, %{grants | grants: Map.put(grants.grants, id, grant)}}
  end

  # Of a lease that nobody has, nobody can be told.
  defp wait(%{grants: grants, waiting: waiting} = state, id, holder)
       when is_map_key(grants, id) do
    others = waiting |> Map.get(id, []) |> List.delete(holder) |> Enum.take(@most_waiting - 1)
    %{state | waiting: Map.put(waiting, id, [holder | others])}
  end

  defp wait(state, _id, _holder), do: state
end
