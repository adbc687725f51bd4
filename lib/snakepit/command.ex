defmodule Snakepit.Command do
  @moduledoc """
  What to run: program, arguments, environment, streams, user and limits.

  `new!/1` checks everything that can be checked without starting anything, and raises
  `ArgumentError` with the key, what was expected and what was given.

  | option | meaning (default) |
  |---|---|
  | `:cmd` | `[program \\| args]`, required; no shell is involved |
  | `:env` | `{name, value}` pairs to set; a value of `nil` removes the variable |
  | `:clear_env` | start from an empty environment (`false`) |
  | `:cd` | directory to run in |
  | `:umask` | file mode creation mask |
  | `:stdio` | `:tail` (default), `:null`, `:inherit`, `{:file, path}`, `{:pipe, token}`, `{:stream, token}` |
  | `:lifeline` | token of a connection that the process gets as its lifeline |
  | `:user`, `:group`, `:groups` | name or number; a user by name brings its groups along |
  | `:nice` | -20 to 19 |
  | `:rlimits` | such as `[nofile: 1024, core: {0, :infinity}]`: soft, or soft and hard |
  | `:oom_score_adj` | -1000 to 1000 |

  """

  @enforce_keys [:cmd]
  defstruct [
    :cmd,
    :cd,
    :umask,
    :lifeline,
    :user,
    :group,
    :groups,
    :nice,
    :oom_score_adj,
    env: [],
    clear_env: false,
    stdio: :tail,
    rlimits: []
  ]

  @type t :: %__MODULE__{}

  # Linux numbers; the only system with a guardian so far. RLIMIT_LOCKS is missing on purpose: it has
  # no effect, and Snakepit marks its processes with it.
  @resources %{
    cpu: 0,
    fsize: 1,
    data: 2,
    stack: 3,
    core: 4,
    rss: 5,
    nproc: 6,
    nofile: 7,
    memlock: 8,
    as: 9,
    sigpending: 11,
    msgqueue: 12,
    nice: 13,
    rtprio: 14,
    rttime: 15
  }

  # Where the guardian puts it.
  @lifeline_fd "3"

  @unlimited 18_446_744_073_709_551_615

  @doc """
  A checked command.

      iex> Snakepit.Command.new!(cmd: ["sleep", "60"]).stdio
      :tail
      iex> Snakepit.Command.new!(cmd: "sleep 60")
      ** (ArgumentError) expected :cmd to be a list of a program and its arguments, got: "sleep 60"

  """
  @spec new!(keyword()) :: t()
  def new!(opts) do
    unless Keyword.keyword?(opts) do
      raise ArgumentError, "expected options as a keyword list, got: #{inspect(opts)}"
    end

    known = __MODULE__ |> struct() |> Map.from_struct() |> Map.keys()

    case Keyword.keys(opts) -- known do
      [] ->
        :ok

      [key | _] ->
        raise ArgumentError, "unknown option #{inspect(key)}, expected one of #{inspect(known)}"
    end

    unless Keyword.has_key?(opts, :cmd), do: raise(ArgumentError, "the option :cmd is required")
    Enum.each(opts, &check!/1)
    struct!(__MODULE__, opts)
  end

  @doc """
  What the guardian is told. `markers` are `{name, value}` pairs that no option can override.

  User and group names are looked up here, which may take a moment.
  """
  @spec to_request(t(), [{String.t(), String.t()}]) ::
          {:ok, map()} | {:error, Snakepit.Error.t()}
  def to_request(%__MODULE__{} = command, markers) do
    with {:ok, identity} <- identity(command) do
      # Without one, not the number of a lifeline that the BEAM itself may have.
      lifeline = [{"SNAKEPIT_LIFELINE_FD", command.lifeline && @lifeline_fd}]
      env = for pairs <- [command.env, markers, lifeline], pair <- pairs, into: %{}, do: pair
      {set, unset} = Enum.split_with(env, fn {_name, value} -> value != nil end)

      {:ok,
       Map.merge(identity, %{
         arguments: command.cmd,
         inherit: not command.clear_env,
         set: for({name, value} <- set, do: "#{name}=#{value}"),
         unset: for({name, nil} <- unset, do: name),
         directory: command.cd,
         umask: command.umask,
         stdio: command.stdio,
         lifeline: command.lifeline,
         nice: command.nice,
         limits: for({name, value} <- command.rlimits, do: limit(name, value)),
         oom_score_adj: command.oom_score_adj,
         stop: {:sigterm, nil, :tree}
       })}
    end
  end

  defp identity(%{user: user, group: group, groups: groups}) do
    with {:ok, account} <- account(user),
         {:ok, gid} <- gid(group),
         {:ok, gids} <- gids(groups) do
      {:ok, %{uid: account.uid, gid: gid || account.gid, groups: gids || account.groups}}
    end
  end

  defp account(nil), do: {:ok, %{uid: nil, gid: nil, groups: nil}}
  defp account(uid) when is_integer(uid), do: {:ok, %{uid: uid, gid: nil, groups: nil}}

  defp account(name) do
    case Snakepit.Native.user_lookup(name) do
      {:ok, {uid, gid, groups}} -> {:ok, %{uid: uid, gid: gid, groups: groups}}
      {:error, {reason, nil}} -> {:error, unknown(:user, name, reason)}
    end
  end

  defp gid(group) when is_integer(group) or is_nil(group), do: {:ok, group}

  defp gid(name) do
    case Snakepit.Native.group_lookup(name) do
      {:ok, gid} -> {:ok, gid}
      {:error, {reason, nil}} -> {:error, unknown(:group, name, reason)}
    end
  end

  defp gids(nil), do: {:ok, nil}

  # In any order: the kernel sorts them.
  defp gids(groups) do
    Enum.reduce_while(groups, {:ok, []}, fn group, {:ok, gids} ->
      case gid(group) do
        {:ok, gid} -> {:cont, {:ok, [gid | gids]}}
        error -> {:halt, error}
      end
    end)
  end

  defp unknown(kind, name, reason) do
    detail = "no #{kind} #{inspect(name)} (#{reason})"
    %Snakepit.Error{operation: :spawn, reason: reason, step: kind, detail: detail}
  end

  defp limit(name, {soft, hard}), do: {@resources[name], number(soft), number(hard)}
  defp limit(name, both), do: limit(name, {both, both})

  defp number(:infinity), do: @unlimited
  defp number(number), do: number

  defp check!({:cmd, [program | _] = cmd}) when is_binary(program) and program != "" do
    for argument <- cmd, do: text!(:cmd, argument)
  end

  defp check!({:cmd, []}), do: raise(ArgumentError, "expected :cmd to name a program, got: []")

  defp check!({:cmd, other}), do: mismatch(:cmd, "a list of a program and its arguments", other)

  defp check!({:env, env}) do
    unless is_list(env) or is_map(env), do: mismatch(:env, "pairs of name and value", env)

    for pair <- env do
      case pair do
        {name, value}
        when is_binary(name) and name != "" and (is_binary(value) or is_nil(value)) ->
          text!(:env, name)
          if value, do: text!(:env, value)
          if String.contains?(name, "="), do: mismatch(:env, "names without =", name)

        other ->
          mismatch(:env, "pairs of name and value", other)
      end
    end
  end

  defp check!({:clear_env, value}) when is_boolean(value), do: :ok
  defp check!({:cd, nil}), do: :ok
  defp check!({:cd, path}) when is_binary(path) and path != "", do: text!(:cd, path)
  defp check!({:umask, value}) when value in 0..0o777 or is_nil(value), do: :ok
  defp check!({:stdio, stdio}) when stdio in [:tail, :null, :inherit], do: :ok
  defp check!({:stdio, {:file, path}}) when is_binary(path), do: text!(:stdio, path)
  defp check!({:stdio, {kind, token}}) when kind in [:pipe, :stream] and is_binary(token), do: :ok
  defp check!({:lifeline, token}) when is_binary(token) or is_nil(token), do: :ok
  defp check!({key, nil}) when key in [:user, :group, :groups, :nice, :oom_score_adj], do: :ok
  defp check!({key, value}) when key in [:user, :group], do: account!(key, value)

  defp check!({:groups, list}) when is_list(list),
    do: for(one <- list, do: account!(:groups, one))

  defp check!({:nice, value}) when value in -20..19, do: :ok
  defp check!({:oom_score_adj, value}) when value in -1000..1000, do: :ok

  defp check!({:rlimits, limits}) do
    unless Keyword.keyword?(limits), do: mismatch(:rlimits, "a keyword list", limits)

    for {name, value} <- limits do
      unless Map.has_key?(@resources, name) do
        mismatch(:rlimits, "names among #{inspect(Map.keys(@resources))}", name)
      end

      values = if is_tuple(value), do: Tuple.to_list(value), else: [value]

      unless length(values) in 1..2 and
               Enum.all?(values, &(&1 == :infinity or (is_integer(&1) and &1 in 0..@unlimited))) do
        mismatch(:rlimits, "a limit, or a pair of soft and hard", {name, value})
      end
    end
  end

  defp check!({:umask, other}), do: mismatch(:umask, "a number from 0 to 0o777", other)
  defp check!({:clear_env, other}), do: mismatch(:clear_env, "a boolean", other)
  defp check!({:cd, other}), do: mismatch(:cd, "a path", other)
  defp check!({:lifeline, other}), do: mismatch(:lifeline, "a token", other)
  defp check!({:groups, other}), do: mismatch(:groups, "a list of groups", other)
  defp check!({:nice, other}), do: mismatch(:nice, "a number from -20 to 19", other)
  defp check!({:oom_score_adj, other}), do: mismatch(:oom_score_adj, "-1000 to 1000", other)

  defp check!({:stdio, other}) do
    expected = ":tail, :null, :inherit, {:file, path}, {:pipe, token} or {:stream, token}"
    mismatch(:stdio, expected, other)
  end

  defp account!(_key, number) when is_integer(number) and number in 0..4_294_967_294, do: :ok
  defp account!(key, name) when is_binary(name) and name != "", do: text!(key, name)
  defp account!(key, other), do: mismatch(key, "a name or a number", other)

  defp text!(key, text) do
    cond do
      not is_binary(text) -> mismatch(key, "strings", text)
      String.contains?(text, <<0>>) -> mismatch(key, "text without NUL bytes", text)
      true -> :ok
    end
  end

  defp mismatch(key, expected, given) do
    raise ArgumentError, "expected #{inspect(key)} to be #{expected}, got: #{inspect(given)}"
  end
end
