defmodule Snakepit do
  @moduledoc """
  Runs external OS processes from Elixir without ever leaving one behind, and without ever
  signalling one that it did not start.

  ## Where to go from here

    * `Snakepit.Guardian` - starts, watches and ends processes, through a helper that outlives the BEAM
      by as long as the clean-up takes
    * `Snakepit.Command` - what to run
    * `Snakepit.Pool.ProcessRegistry` - who runs what, recorded so that it survives `kill -9`
    * `Snakepit.RunState` - the life of this run, and the history of earlier ones
    * `Snakepit.OSProcess` - a process known by more than its pid
    * `Snakepit.ProcessKiller` - signals and ends processes, groups, and whole runs
    * `Snakepit.Telemetry` - what can be listened to
    * `Snakepit.Config` - what can be set

  """

  alias Snakepit.{Config, Error, Run, Script}
  alias Snakepit.Pool.{ApplicationCleanup, ProcessRegistry}

  @doc """
  This run's id: that of this BEAM, from the start of the application to its stop.

      iex> Snakepit.RunID.valid?(Snakepit.run_id())
      true

  """
  @spec run_id() :: Snakepit.RunID.t()
  def run_id, do: Run.current!().id

  @doc """
  Ends every process of this run and returns when they are gone. The registry is empty afterwards.

  Supervisors that look after workers do what they do: they start them again.

  ## Options

    * `:timeout_ms` - how long they may take to end after SIGTERM, all together; by default the
      `cleanup_on_stop_timeout_ms` of the configuration

  """
  @spec cleanup(keyword()) ::
          {:ok, %{stopped: non_neg_integer(), killed: non_neg_integer()}} | {:error, Error.t()}
  def cleanup(opts \\ []) do
    opts = Keyword.validate!(opts, [:timeout_ms])
    config = Config.fetch!()
    timeout = Keyword.get(opts, :timeout_ms, config.cleanup_on_stop_timeout_ms)

    case ApplicationCleanup.run(timeout, config.force_kill_timeout_ms) do
      %{survivors: []} = report ->
        {:ok, Map.take(report, [:stopped, :killed])}

      %{survivors: survivors} ->
        {:error, %Error{operation: :cleanup, reason: :survivors, os_pids: survivors}}
    end
  end

  @doc """
  The workers of this BEAM that have a process: id, `os_pid`, `uptime_ms` and `state`, which is
  `:alive`, or `:dead` for one that is about to be forgotten.
  """
  @spec workers() :: [map()]
  def workers do
    now = System.monotonic_time(:millisecond)
    dead = for {id, _info} <- ProcessRegistry.validate_workers(), into: MapSet.new(), do: id

    for {id, %{status: :active} = info} <- ProcessRegistry.list_all_workers() do
      %{
        id: id,
        pid: info.owner,
        os_pid: info.os_pid,
        uptime_ms: now - info.since_ms,
        state: if(id in dead, do: :dead, else: :alive)
      }
    end
  end

  @doc """
  Runs `fun` as a script does its work: starts Snakepit if need be, gives what `fun` gives, and leaves
  no process behind, also when `fun` raises, throws or exits.

      iex> Snakepit.run_as_script(fn -> 6 * 7 end)
      42

  What happens to the script itself, Ctrl-C or `kill -9`, is the guardian's business.

  ## Options

    * `:timeout` - how long `fun` may take, in milliseconds; it is killed then, and this exits with
      `:timeout`. `:infinity` by default
    * `:shutdown_timeout` - how long processes may take to end after SIGTERM; by default the
      `cleanup_on_stop_timeout_ms` of the configuration
    * `:halt` - `true` to stop the BEAM in good order afterwards, with status 0, or 1 if `fun` failed;
      `false` by default

  """
  @spec run_as_script((() -> result), keyword()) :: result when result: term()
  defdelegate run_as_script(fun, opts \\ []), to: Script, as: :run
end
