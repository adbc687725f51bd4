defmodule Snakepit.Cluster.Lease.Holder do
  @moduledoc false

  # One who wants a lease or has it: what it decides, without a process. It takes what has happened and the time, and
  # returns actions:
  #
  #   * `{:send, member, operation, token}`, with the time at which it is sent
  #   * `{:timer, milliseconds}`: call `tick/2` then, and forget an earlier timer
  #   * `{:held, token, until}`: the lease is had, or had for longer
  #   * `:lost`
  #
  # The rules are those of `native/snakepit_lease`. A grant counts from when its request was sent, for each member by
  # itself: the lease lasts as long as those of a majority do.

  alias Snakepit.Cluster.Lease.Rules

  @enforce_keys [:members, :lease]
  defstruct [
    :members,
    :lease,
    :token,
    phase: :waiting,
    # The greatest token that it knows of.
    highest: 0,
    # Until when the grant of each member counts.
    counts_until: %{},
    refusals: %{},
    failures: 0,
    told_until: nil,
    # The token of a lease that was lost: it is not given back, since its process may live for a moment.
    lost: nil
  ]

  @type t :: %__MODULE__{phase: :waiting | :asking | :holding}
  @type action ::
          {:send, node(), :acquire | :renew | :release, pos_integer()}
          | {:timer, non_neg_integer()}
          | {:held, pos_integer(), integer()}
          | :lost

  # How long an attempt waits for its answers, at first and at the most; links may be slow. Longer each time that votes
  # were split. Members that are cut off do not answer, and an attempt that waits for them keeps others from the lease.
  @first_answer_ms 100
  @longest_answer_ms 500
  # Pauses are drawn, from below a bound that is longer than an attempt: of contenders with equal pauses, none may ever
  # get it.
  @first_pause_ms 50

  @doc "Begins without a lease. The first attempt is made at the first tick."
  @spec new([node(), ...], pos_integer(), non_neg_integer()) :: t()
  def new(members, lease, highest),
    do: %__MODULE__{members: members, lease: lease, highest: highest}

  @doc "The timer is over."
  @spec tick(t(), integer()) :: {t(), [action()]}
  def tick(%{phase: :waiting} = holder, _now), do: attempt(holder)
  def tick(%{phase: :asking} = holder, _now), do: give_up(holder)

  def tick(%{phase: :holding} = holder, now) do
    if now >= holder.told_until do
      lose(holder)
    else
      sends = for member <- holder.members, do: {:send, member, :renew, holder.token}
      {holder, sends ++ [{:timer, next(holder, now)}]}
    end
  end

  # Order: it is told that it has lost the lease when it has, and not a while after.
  defp next(holder, now),
    do: min(Rules.interval(holder.lease), max(holder.told_until - now, 0))

  # Each attempt has a token of its own: one that was used before is no greater than that of a lease in between.
  defp attempt(holder) do
    token = holder.highest + 1

    holder = %{
      holder
      | phase: :asking,
        token: token,
        highest: token,
        counts_until: %{},
        refusals: %{}
    }

    sends = for member <- holder.members, do: {:send, member, :acquire, token}
    {holder, sends ++ [{:timer, answer_ms(holder)}]}
  end

  @doc "A member has granted what was asked for at `sent`."
  @spec granted(t(), integer(), node(), pos_integer(), integer()) :: {t(), [action()]}
  def granted(%{phase: phase, token: token} = holder, now, member, token, sent)
      when phase in [:asking, :holding] do
    counts = sent + Rules.counts(holder.lease)
    counts_until = Map.update(holder.counts_until, member, counts, &max(&1, counts))
    holder = %{holder | counts_until: counts_until}
    until = Rules.majority_until(Map.values(counts_until), length(holder.members))
    have(holder, now, until)
  end

  def granted(%{lost: token} = holder, _now, _member, token, _sent), do: {holder, []}

  # An answer to an attempt that was given up.
  def granted(holder, _now, member, token, _sent),
    do: {holder, [{:send, member, :release, token}]}

  # A process that is started has a while to run.
  defp have(%{phase: :asking} = holder, now, until)
       when until != nil and until - now > div(holder.lease, 2) do
    holder = %{holder | phase: :holding, failures: 0, told_until: until}
    {holder, [{:held, holder.token, until}, {:timer, Rules.interval(holder.lease)}]}
  end

  # Order: whether it was lost comes first. What comes too late does not bring it back.
  defp have(%{phase: :holding, told_until: told} = holder, now, _until) when now >= told,
    do: lose(holder)

  defp have(%{phase: :holding, told_until: told} = holder, _now, until) when until > told,
    do: {%{holder | told_until: until}, [{:held, holder.token, until}]}

  defp have(holder, _now, _until), do: {holder, []}

  @doc "A member has refused."
  @spec refused(t(), node(), pos_integer(), term()) :: {t(), [action()]}
  def refused(%{phase: :asking, token: token} = holder, member, token, why) do
    holder = %{holder | refusals: Map.put(holder.refusals, member, why)}
    members = length(holder.members)

    if map_size(holder.refusals) >= members - div(members, 2),
      do: give_up(holder),
      else: {holder, []}
  end

  def refused(holder, _member, _token, _why), do: {holder, []}

  @doc "A member has a token on its disk."
  @spec seen(t(), non_neg_integer()) :: t()
  def seen(holder, number), do: %{holder | highest: max(holder.highest, number)}

  @doc "A member that has refused says that the lease is free."
  @spec free(t()) :: {t(), [action()]}
  def free(%{phase: :waiting} = holder), do: {holder, [{:timer, pause(holder)}]}
  def free(holder), do: {holder, []}

  @doc "Gives the lease back, because its process is dead, and tries to get another."
  @spec release(t()) :: {t(), [action()]}
  def release(holder) do
    {holder, actions} = let_go(holder)
    # Others have waited for it.
    {%{holder | failures: 0}, actions ++ [{:timer, holder.lease}]}
  end

  # Nothing is given back: the process is dead already or about to be, and it is not known which.
  defp lose(%{token: token} = holder) do
    {holder, _releases} = let_go(%{holder | failures: holder.failures + 1})
    {%{holder | lost: token}, [:lost, {:timer, holder.lease}]}
  end

  # Where somebody has granted, others have tried at the same time, or members are missing. One that others hold is none
  # of this: when it is free, nobody waits longer for it because it was held for long.
  defp give_up(holder) do
    failures = if holder.counts_until == %{}, do: 0, else: holder.failures + 1
    {released, actions} = let_go(%{holder | failures: failures})
    {released, actions ++ [{:timer, wait(holder) + pause(released)}]}
  end

  # Also to those who have not answered: they may have granted.
  defp let_go(%{token: nil} = holder), do: {holder, []}

  defp let_go(holder) do
    sends =
      for member <- holder.members,
          not is_map_key(holder.refusals, member),
          do: {:send, member, :release, holder.token}

    {%{holder | phase: :waiting, token: nil, counts_until: %{}, refusals: %{}, told_until: nil},
     sends}
  end

  # Until a majority may be free again, by what they have said; members that grant are free.
  defp wait(holder) do
    members = length(holder.members)

    lefts =
      for member <- holder.members do
        case holder.refusals do
          %{^member => {why, left}} when why in [:taken, :restarted] -> left
          _granted_or_silent -> 0
        end
      end

    min(lefts |> Enum.sort() |> Enum.at(div(members, 2)), holder.lease)
  end

  defp pause(%{failures: 0}), do: :rand.uniform(@first_pause_ms)
  defp pause(holder), do: :rand.uniform(2 * answer_ms(holder))

  defp answer_ms(%{lease: lease, failures: failures}) do
    longest = max(@longest_answer_ms, div(lease, 5))
    min(@first_answer_ms * Integer.pow(2, min(failures, 10)), longest)
  end
end
