defmodule Snakepit.Cleanup.Hook do
  @moduledoc false

  # Functions of the host application before and after dead runs are reaped, for a clean-up of its own. Each runs in a
  # process of its own, which is killed when its time is up. Whatever becomes of it, the start goes on.

  require Logger

  @doc "Calls the function that the configuration has under this key, if there is one."
  @spec call(:before_reap | :after_reap, map()) :: :ok
  def call(key, config) do
    with {module, function, arguments} <- Map.fetch!(config, key) do
      {pid, monitor} = spawn_monitor(module, function, arguments)

      receive do
        {:DOWN, ^monitor, :process, ^pid, :normal} -> :ok
        {:DOWN, ^monitor, :process, ^pid, reason} -> log(key, config, exit_text(reason))
      after
        config.reap_hook_timeout_ms ->
          Process.exit(pid, :kill)
          receive(do: ({:DOWN, ^monitor, :process, ^pid, _reason} -> :ok))

          log(
            key,
            config,
            "has not returned within #{config.reap_hook_timeout_ms} ms, and was killed"
          )
      end
    end

    :ok
  end

  defp exit_text(reason), do: "has failed: #{Exception.format_exit(reason)}"

  defp log(key, config, what) do
    {module, function, arguments} = config[key]
    name = Exception.format_mfa(module, function, length(arguments))
    Logger.error("Snakepit's #{inspect(key)} hook #{name} #{what}; the start goes on without it")
  end

  @doc false
  def mfa?({module, function, arguments}),
    do:
      is_atom(module) and is_atom(function) and is_list(arguments) and
        not List.improper?(arguments)

  def mfa?(_other), do: false
end
