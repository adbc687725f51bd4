defmodule Snakepit.Application do
  @moduledoc false

  use Application

  require Logger

  alias Snakepit.HeartbeatMonitor.Poller

  alias Snakepit.{
    Accounts,
    Auditor,
    Cluster,
    Config,
    Error,
    Guardian,
    Metrics,
    Native,
    Pool,
    Run,
    RunState,
    SelfTest
  }

  alias Snakepit.Cleanup.Strays

  alias Snakepit.{ServiceManager, Telemetry}
  alias Snakepit.Pool.{ApplicationCleanup, Directory, PIDLedger, ProcessRegistry}

  # Everything below a guardian dies with it, and that is not a reason to take down the host. More
  # often than this and something kills it on purpose.
  @max_restarts 20
  @max_seconds 5

  # Where modules are loaded when they are first called, these could not be loaded then: the first ones report that no
  # file can be opened, and the last one seals the history of a run when the system stops (seen with OTP 29).
  @loaded_first [Error, Inspect.Snakepit.Error, Snakepit.Output.Tail, :erl_posix_msg, :crypto]

  @impl true
  def start(_type, _args) do
    Enum.each(@loaded_first, &Code.ensure_loaded/1)
    config = Config.fetch!()
    # Order: before anything is made that a refusal would leave behind.
    SelfTest.run!()
    Config.keep(config)

    # Created by this process, which lives as long as the application. Order: the metrics before the run, of which
    # there is something to count already.
    if config.metrics.enabled, do: Metrics.Store.create(config.metrics)
    Directory.create_table()
    run = Run.create!(config)
    RunState.start()
    Poller.create_table()

    with {:error, _reason} = error <- start_tree(run, config) do
      # Roll back the claim.
      let_go(run)
      error
    end
  end

  # Started in this order, so that shutdown runs it backwards. Workers are no part of the inner tree:
  # they outlive a guardian that is lost, and start their processes again by themselves.
  defp start_tree(run, config) do
    core = [
      PIDLedger,
      {Guardian, run: run, config: config},
      %{id: :recorded, start: {PIDLedger, :await_recorded, []}},
      ProcessRegistry,
      ApplicationCleanup,
      # Last: no other child needs them, so their crash restarts no other.
      Auditor,
      Poller,
      Accounts
    ]

    # Before those who have leases, which are in other trees, and after what they run on.
    core = core ++ view(config.cluster) ++ leases(config.cluster)
    core = if config.notify, do: core ++ [{ServiceManager, config}], else: core

    children = [
      supervisor(Snakepit.Supervisor, core, :rest_for_one),
      # Order: before those who use it.
      Snakepit.Python.Runtime,
      {DynamicSupervisor, name: Snakepit.WorkerSupervisor, strategy: :one_for_one},
      supervisor(Snakepit.PoolSupervisor, Enum.map(config.pools, &{Pool, &1}), :one_for_one)
    ]

    Supervisor.start_link(children, options(Snakepit.RootSupervisor, :one_for_one))
  end

  defp view(%{visible: false}), do: []
  defp view(config), do: [Cluster.View.scope(), {Cluster.View, config}]

  defp leases(%{members: []}), do: []

  defp leases(config) do
    member = if node() in config.members, do: [{Cluster.Member, config}], else: []
    member ++ [{Cluster.Connector, config}]
  end

  defp supervisor(name, children, strategy) do
    start = {Supervisor, :start_link, [children, options(name, strategy)]}
    %{id: name, start: start, type: :supervisor}
  end

  defp options(name, strategy) do
    [strategy: strategy, name: name, max_restarts: @max_restarts, max_seconds: @max_seconds]
  end

  @impl true
  def prep_stop(state) do
    ServiceManager.stopping()

    # Not if the supervisor has given up: then the run has ended before this. And if the disk is full,
    # the stop goes on without its record.
    with :running <- RunState.current(),
         {:error, error} <- RunState.shut_down(),
         do: log(error)

    state
  end

  @impl true
  def stop(_state) do
    run = Run.current!()
    ending = RunState.ending()

    # Order: the barrier has seen that nothing is left, and the guardian has ended after it, when the kernel
    # told it that it has no child. There is no process to find then.
    unless ending.terminated_by == :clean_shutdown, do: last_look(run)
    duration = System.monotonic_time(:millisecond) - run.begun
    metadata = Map.put(ending, :run_id, run.id)
    let_go(run)

    Telemetry.execute(
      [:snakepit, :run, :terminated],
      %{count: 1, duration_ms: duration},
      metadata
    )
  end

  # For a supervision tree that gave up, or that does not clean up by its configuration.
  defp last_look(run) do
    with {:ok, [_ | _] = found} <- Native.run_members(run.id) do
      os_pids = Enum.map(found, & &1.os_pid)

      Logger.error(
        "Snakepit has stopped, and kills processes that were left: #{Error.pids(os_pids)}"
      )

      Native.run_sweep(run.id, Strays.noted(run), 0, 5_000)
    end
  end

  defp let_go(run) do
    RunState.forget()
    ServiceManager.forget()
    Run.release(run)
  end

  defp log(error),
    do: Logger.error("Snakepit cannot record its stop: #{Exception.message(error)}")
end
