defmodule Snakepit.Config do
  @moduledoc """
  What `config :snakepit, ...` may say. Checked when the application starts: an unknown key or a
  value of the wrong type stops the start with an error that names it.

  | key | default | meaning |
  |---|---|---|
  | `:data_dir` | `"priv/data"` below the working directory | where runs are recorded |
  | `:output_tail_bytes` | 65536 | how much of each process's last output is kept |
  | `:watchdog` | `[grace_period_ms: 3000]` | what processes get to end by themselves when the BEAM is gone |
  | `:log_level` | `:warning` | the least level of the guardian's lines that reach `Logger` |

  """

  @schema [
    data_dir: {:path, nil},
    output_tail_bytes: {:non_neg_integer, 65_536},
    watchdog: {[grace_period_ms: {:non_neg_integer, 3_000}], []},
    log_level: {{:one_of, [:debug, :info, :warning, :error, :none]}, :warning}
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
  def validate!(given), do: check(given, @schema, "config :snakepit")

  @doc "The configuration of the running application."
  @spec fetch!() :: map()
  def fetch!, do: :snakepit |> Application.get_all_env() |> validate!()

  defp check(given, schema, where) do
    unless Keyword.keyword?(given) do
      raise ArgumentError, "#{where}: expected a keyword list, got: #{inspect(given)}"
    end

    # Mix puts this one into every application's environment.
    given = Keyword.delete(given, :included_applications)

    case Keyword.keys(given) -- Keyword.keys(schema) do
      [] ->
        :ok

      [unknown | _] ->
        known = inspect(Keyword.keys(schema))

        raise ArgumentError,
              "#{where}: unknown key #{inspect(unknown)}, expected one of #{known}"
    end

    Map.new(schema, fn {key, {type, default}} ->
      {key, value(type, Keyword.get(given, key, default), "#{where}, #{inspect(key)}")}
    end)
  end

  defp value(type, value, where) when is_list(type), do: check(value, type, where)
  defp value(:path, nil, _where), do: Path.expand("priv/data")
  defp value(:path, path, _where) when is_binary(path) and path != "", do: Path.expand(path)
  defp value(:path, other, where), do: mismatch(where, "a path", other)

  defp value(:non_neg_integer, number, _where) when is_integer(number) and number >= 0, do: number

  defp value(:non_neg_integer, other, where),
    do: mismatch(where, "an integer of 0 or more", other)

  defp value({:one_of, choices}, value, where) do
    if value in choices, do: value, else: mismatch(where, "one of #{inspect(choices)}", value)
  end

  defp mismatch(where, expected, given) do
    raise ArgumentError, "#{where}: expected #{expected}, got: #{inspect(given)}"
  end
end
