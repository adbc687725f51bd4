defmodule Snakepit.Config do
  @moduledoc """
  What `config :snakepit, ...` may say. Checked when the application starts: an unknown key or a
  value of the wrong type stops the start with an error that names it.

  | key | default | meaning |
  |---|---|---|
  | `:data_dir` | see below | where runs are recorded; a directory on a local disk |
  | `:allow_network_data_dir` | `false` | whether that may be on NFS, FUSE and the like, which this host alone uses |
  | `:instance` | the data directory's own | what keeps this application's processes apart from others' |
  | `:library_mode` | `true` | say nothing on the terminal; `false` for a program that owns it |
  | `:log_level` | `:warning` | the least level of the guardian's lines that reach `Logger` |
  | `:log_output` | `false` | log what workers write, unless their `:output` says otherwise |
  | `:cleanup_on_stop` | `true` | whether the stop of the application ends what is left |
  | `:cleanup_on_stop_timeout_ms` | 3000 | what processes without a `:stop_timeout` of their own get to end by themselves then |
  | `:cleanup_poll_interval_ms` | 50 | used only where the OS cannot notify |
  | `:cleanup_retry_interval_ms`, `:cleanup_max_retries` | 100, 20 | for processes of owners that died |
  | `:process_group_kill` | `true` | whether workers' signals go to their group, or to the process alone |
  | `:graceful_shutdown_timeout_ms` | 2000 | what orphans of earlier runs get to end by themselves |
  | `:force_kill_timeout_ms` | 5000 | what the kernel may take to carry out SIGKILL |
  | `:heartbeat` | `[enabled: false, ping_interval_ms: 2000, timeout_threshold_ms: 10000, max_missed_heartbeats: 3]` | for workers that do not say otherwise |
  | `:watchdog` | `[grace_period_ms: 3000]` | the same when the BEAM is gone |
  | `:audit_interval_ms` | 30000 | how often registry, guardian and process table are compared |
  | `:history` | `[keep: 50]` | how many ended runs are remembered |
  | `:output_tail_bytes` | 65536 | how much of each process's last output is kept |

  ## The data directory

  The next start has to find it again, or it does not know what the last one has left behind. It is, in
  this order:

    1. `config :snakepit, data_dir: path`
    2. the variable `SNAKEPIT_DATA_DIR`
    3. `snakepit` in the first directory of `STATE_DIRECTORY`, which systemd sets for a service with
       `StateDirectory=`
    4. `$XDG_STATE_HOME/snakepit/<application>`, `$HOME/.local/state/snakepit/<application>`,
       `/var/tmp/snakepit-<uid>/<application>`, and the same in the temporary directory: the one that was
       used before, or else the first that can be made

  One that is named is used or refused. Several BEAMs of one user may share it.

  Only this user and root may be able to write there. If others may, as on most volumes of Kubernetes, the
  directory `snakepit-<uid>` is made in it with mode 0700, and used instead. A run that others can have
  written to is not read. Do not copy a data directory while it is in use: both would be the same instance.
  """

  @schema [
    data_dir: {:path, nil},
    allow_network_data_dir: {:boolean, false},
    instance: {:name, nil},
    library_mode: {:boolean, true},
    log_level: {{:one_of, [:debug, :info, :warning, :error, :none]}, :warning},
    log_output: {:boolean, false},
    cleanup_on_stop: {:boolean, true},
    cleanup_on_stop_timeout_ms: {:non_neg_integer, 3_000},
    cleanup_poll_interval_ms: {:pos_integer, 50},
    cleanup_retry_interval_ms: {:non_neg_integer, 100},
    cleanup_max_retries: {:non_neg_integer, 20},
    process_group_kill: {:boolean, true},
    graceful_shutdown_timeout_ms: {:non_neg_integer, 2_000},
    force_kill_timeout_ms: {:pos_integer, 5_000},
    heartbeat:
      {[
         enabled: {:boolean, false},
         ping_interval_ms: {:pos_integer, 2_000},
         timeout_threshold_ms: {:pos_integer, 10_000},
         max_missed_heartbeats: {:pos_integer, 3}
       ], []},
    watchdog: {[grace_period_ms: {:non_neg_integer, 3_000}], []},
    audit_interval_ms: {:pos_integer, 30_000},
    history: {[keep: {:non_neg_integer, 50}], []},
    output_tail_bytes: {:non_neg_integer, 65_536}
  ]

  @doc """
  The whole configuration with defaults filled in, as a map. Raises `ArgumentError`.

      iex> config = Snakepit.Config.validate!(watchdog: [grace_period_ms: 500])
      iex> config.watchdog.grace_period_ms
      500
      iex> Snakepit.Config.validate!(watchdog: [grace: 500])
      ** (ArgumentError) config :snakepit, :watchdog: unknown key :grace, expected one of [:grace_period_ms]

  """
  @spec validate!(keyword()) :: map()
  def validate!(given), do: check(given, @schema, [])

  @doc """
  The configuration that the application was started with. Checking it takes longer than starting a
  process may.
  """
  @spec current() :: map()
  def current, do: :persistent_term.get(__MODULE__, nil) || fetch!()

  @doc false
  def keep(config), do: :persistent_term.put(__MODULE__, config)

  @doc "The configuration of the running application."
  @spec fetch!() :: map()
  def fetch!, do: :snakepit |> Application.get_all_env() |> validate!()

  # `where` are keys, the innermost first: a sentence is made of them when there is something to say.
  defp check(given, schema, where) do
    unless Keyword.keyword?(given), do: mismatch(where, "a keyword list", given)

    # Mix puts this one into every application's environment.
    given = Keyword.delete(given, :included_applications)

    case Keyword.keys(given) -- Keyword.keys(schema) do
      [] ->
        :ok

      [unknown | _] ->
        known = inspect(Keyword.keys(schema))

        raise ArgumentError,
              "#{name(where)}: unknown key #{inspect(unknown)}, expected one of #{known}"
    end

    Map.new(schema, fn {key, {type, default}} ->
      {key, value(type, Keyword.get(given, key, default), [key | where])}
    end)
  end

  defp value(type, value, where) when is_list(type), do: check(value, type, where)
  defp value(:path, nil, _where), do: nil
  defp value(:path, path, _where) when is_binary(path) and path != "", do: Path.expand(path)
  defp value(:path, other, where), do: mismatch(where, "a path", other)

  defp value(:non_neg_integer, number, _where) when is_integer(number) and number >= 0, do: number

  defp value(:pos_integer, number, _where) when is_integer(number) and number > 0, do: number
  defp value(:pos_integer, other, where), do: mismatch(where, "an integer of 1 or more", other)
  defp value(:boolean, value, _where) when is_boolean(value), do: value
  defp value(:boolean, other, where), do: mismatch(where, "true or false", other)

  # It goes into the environment of every process.
  defp value(:name, nil, _where), do: nil

  defp value(:name, name, where) do
    if is_binary(name) and name =~ ~r/\A[[:alnum:]_.-]{1,64}\z/,
      do: name,
      else: mismatch(where, "1 to 64 letters, digits, dots, dashes and underscores", name)
  end

  defp value(:non_neg_integer, other, where),
    do: mismatch(where, "an integer of 0 or more", other)

  defp value({:one_of, choices}, value, where) do
    if value in choices, do: value, else: mismatch(where, "one of #{inspect(choices)}", value)
  end

  defp mismatch(where, expected, given) do
    raise ArgumentError, "#{name(where)}: expected #{expected}, got: #{inspect(given)}"
  end

  defp name(where),
    do: Enum.join(["config :snakepit" | where |> Enum.reverse() |> Enum.map(&inspect/1)], ", ")
end
