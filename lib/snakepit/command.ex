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
  | `:user`, `:group`, `:groups` | name or number; a user brings its groups along, and a number without an account the group of the same number alone |
  | `:nice` | -20 to 19 |
  | `:rlimits` | such as `[nofile: 1024, core: {0, :infinity}]`: soft, or soft and hard |
  | `:oom_score_adj` | -1000 to 1000 |
  | `:stop_signal` | what asks it to end (`:sigterm`) |
  | `:stop_timeout` | milliseconds until SIGKILL; `nil` for what the ending at hand gives (`nil`) |
  | `:kill_mode` | who gets the stop signal first: the whole `:tree` (default), the `:group`, or the `:leader` |

  ## The end

  `:stop_signal`, `:stop_timeout` and `:kill_mode` hold in every ending: the death of the BEAM,
  `Snakepit.cleanup/1`, the stop of the application, and for what a process leaves behind when it ends by
  itself. Who does not get the stop signal first gets it when the leader is gone, and nobody gets it
  twice. When the time is up, SIGKILL goes to the whole tree, whatever the mode.

  Without a `:stop_timeout`, a process has the `grace_period_ms` of the watchdog when the BEAM is gone,
  and `cleanup_on_stop_timeout_ms` when the application stops.
  """

  alias Snakepit.Command.Request
  alias Snakepit.Native

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
    :stop_timeout,
    env: [],
    clear_env: false,
    stdio: :tail,
    rlimits: [],
    stop_signal: :sigterm,
    kill_mode: :tree
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

  @unlimited 18_446_744_073_709_551_615
  # Some weeks. With what a call may take on top of it, it is still one that a timer can wait for.
  @longest_ms 0x7FFFFFFF

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

  Users and groups are looked up here, which may take a moment; the answers are kept for half a minute. What no kernel would execute because
  it is too long is refused with `:e2big`.
  """
  @spec to_request(t(), [{String.t(), String.t()}]) ::
          {:ok, map()} | {:error, Snakepit.Error.t()}
  defdelegate to_request(command, markers), to: Request, as: :new

  @doc false
  def resource(name), do: @resources[name]

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

  defp check!({:stop_signal, signal}) do
    unless Native.signal_valid(signal), do: mismatch(:stop_signal, "a signal", signal)
  end

  defp check!({:stop_timeout, value}) when value in 0..@longest_ms or is_nil(value), do: :ok
  defp check!({:kill_mode, mode}) when mode in [:tree, :group, :leader], do: :ok

  defp check!({:stop_timeout, other}),
    do: mismatch(:stop_timeout, "a number of milliseconds from 0 to #{@longest_ms}", other)

  defp check!({:kill_mode, other}), do: mismatch(:kill_mode, ":tree, :group or :leader", other)
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
