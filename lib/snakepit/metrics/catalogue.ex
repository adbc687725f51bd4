defmodule Snakepit.Metrics.Catalogue do
  @moduledoc false

  # All metrics: name, type, labels and help of each, and where its values lie in memory. Text, documentation and
  # `Telemetry.Metrics` definitions are made from this list.
  #
  # A metric that is counted as things happen has a *scope*: `:run` for one value, or `:group` or `:pool` for one
  # per worker group or pool. Each member of a scope has a row, an array of integers in which each value has its
  # place: one for a counter, one per value of its other label if it has one, and for a histogram one per bucket
  # and one for the sum. Seconds are kept as microseconds. A metric that is looked up when somebody asks has the scope
  # `:sampled`, and no place (`Snakepit.Metrics.Sample`).

  @short [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
  @long @short ++ [30.0, 60.0, 120.0, 300.0, 600.0]
  @life [1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0]

  @ends ~w(normal shutdown exit_status exit_signal heartbeat_timeout guardian_down not_ready protocol survivors crash)a
  @methods ~w(exited graceful forced guardian_down)a

  # Name without the prefix and suffix, type, scope, other label with its values or buckets, help.
  @families [
    {:process_starts, :counter, :group, nil,
     "Processes of workers that started and became ready."},
    {:process_start_failures, :counter, :group, {:step, [:launch, :ready]},
     "Processes of workers that could not be launched, or did not become ready."},
    {:process_restarts, :counter, :group, {:reason, [:failure, :guardian_down]},
     "Processes that started in place of one that had failed, or was lost with the guardian."},
    {:process_ends, :counter, :group, {:reason, @ends},
     "Processes of workers that ended, by the reason with which the worker exited."},
    {:process_cleanups, :counter, :group, {:method, @methods},
     "Clean-ups after a worker's process, by how it was ended."},
    {:process_cleanup_failures, :counter, :group, nil,
     "Clean-ups after a worker's process that left something behind."},
    {:launch_duration, :histogram, :group, @short,
     "Time from the request to launch a worker's process until it executed its program."},
    {:process_start_duration, :histogram, :group, @long,
     "Time from the start of a worker until its process was ready."},
    {:process_cleanup_duration, :histogram, :group, @long,
     "Time that it took to end a worker's process with everything that it had started."},
    {:process_lifetime, :histogram, :group, @life, "Time that a worker's process lived."},
    {:heartbeat_pings, :counter, :group, nil, "Pings sent to workers."},
    {:heartbeat_pongs, :counter, :group, nil, "Pongs received from workers."},
    {:heartbeat_misses, :counter, :group, nil,
     "Pings that were not answered within the threshold."},
    {:heartbeat_latency, :histogram, :group, @short, "Time from a ping to its pong."},
    {:worker_cpu, :counter, :group, nil,
     "CPU time of workers' processes, with their descendants, until the last scrape."},
    {:pool_checkouts, :counter, :pool, {:result, [:ok, :timeout, :error]},
     "Callers that asked for a worker of a pool, by what they got."},
    {:pool_checkout_wait, :histogram, :pool, @long,
     "Time that a caller waited for a worker of a pool."},
    {:commands, :counter, :run, {:result, [:ok, :status, :signal, :limit, :error]},
     "Programs run by Snakepit.cmd/3 and Snakepit.run/3, by how they ended."},
    {:command_duration, :histogram, :run, @long,
     "Time that a program run by Snakepit.cmd/3 or Snakepit.run/3 took."},
    {:cleanups, :counter, :run, {:result, [:success, :timeout]},
     "Clean-ups of the whole run, by whether something was left."},
    {:cleanup_duration, :histogram, :run, @long, "Time that a clean-up of the whole run took."},
    {:survivors, :counter, :run, nil, "Processes that could not be ended."},
    {:orphans, :counter, :run, {:found_by, [:auditor, :start]},
     "Processes that nobody looked after any more, and that were ended."},
    {:ambiguous_processes, :counter, :run, nil,
     "Processes that may belong to someone else, and that were left alone."},
    {:runs_reaped, :counter, :run,
     {:ended_by, [:guardian, :cleanup, :reboot, :elsewhere, :clean_shutdown, :nobody]},
     "Runs that had died, and were closed by this one."},
    {:reap_duration, :histogram, :run, @long,
     "Time that it took at the start to deal with dead runs."},
    {:audits, :counter, :run, nil, "Comparisons of registry, guardian and process table."},
    {:audit_duration, :histogram, :run, @short, "Time that an audit took."},
    {:stale_entries, :counter, :run, nil,
     "Entries of the registry without a process that an audit deleted."},
    {:watchdog_activations, :counter, :run, nil,
     "Guardians that found their BEAM dead and ended its processes, as the next start read."},
    {:watchdog_terminations, :counter, :run, {:method, [:sigterm, :sigkill]},
     "Processes that a guardian ended because its BEAM was dead."},
    {:guardian_starts, :counter, :run, nil, "Guardians that started in this run."},
    {:guardian_silences, :counter, :run, {:action, [:continued, :killed]},
     "Times that the guardian did not answer, by what was done about it."},
    {:metrics_overflows, :counter, :run, nil,
     "Events that were counted as group or pool other, because there are too many."},
    {:workers, :gauge, :sampled, [:group], "Workers that have a process."},
    {:worker_processes, :gauge, :sampled, [:group],
     "Processes of workers, with their descendants."},
    {:worker_memory, :gauge, :sampled, [:group],
     "Memory of workers' processes, with their descendants."},
    {:pool_up, :gauge, :sampled, [:pool], "Whether the pool answers."},
    {:pool_size, :gauge, :sampled, [:pool], "Workers that the pool should have."},
    {:pool_workers, :gauge, :sampled, [:pool, :state], "Workers of the pool, by state."},
    {:pool_queued, :gauge, :sampled, [:pool], "Callers that wait for a worker of the pool."},
    {:guardian_up, :gauge, :sampled, [], "Whether the guardian runs."},
    {:guardian_memory, :gauge, :sampled, [], "Memory of the guardian."},
    {:guardian_cpu, :counter, :sampled, [], "CPU time of the guardian."},
    {:run_start_time, :gauge, :sampled, [], "When this run started, in seconds since the epoch."},
    {:build, :info, :sampled, [:version, :run_id], "Version of Snakepit, and id of this run."}
  ]

  # The units, which end a name.
  @seconds ~w(launch_duration process_start_duration process_cleanup_duration process_lifetime heartbeat_latency
    pool_checkout_wait command_duration cleanup_duration reap_duration audit_duration worker_cpu guardian_cpu
    run_start_time)a
  @bytes ~w(worker_memory guardian_memory)a

  @type type :: :counter | :gauge | :histogram | :info
  @type scope :: :run | :group | :pool | :sampled

  @type t :: %{
          key: atom(),
          name: String.t(),
          type: type(),
          unit: String.t() | nil,
          scope: scope(),
          labels: [atom()],
          label: {atom(), [atom()]} | nil,
          buckets: [float()] | nil,
          help: String.t()
        }

  parse = fn {key, type, scope, detail, help} ->
    unit =
      cond do
        key in @seconds -> "seconds"
        key in @bytes -> "bytes"
        true -> nil
      end

    own = if scope in [:group, :pool], do: [scope], else: []

    {labels, label, buckets} =
      cond do
        scope == :sampled -> {detail, nil, nil}
        type == :histogram -> {own, nil, detail}
        detail == nil -> {own, nil, nil}
        true -> {own ++ [elem(detail, 0)], detail, nil}
      end

    %{
      key: key,
      name: Enum.join(["snakepit", key] ++ List.wrap(unit), "_"),
      type: type,
      unit: unit,
      scope: scope,
      labels: labels,
      label: label,
      buckets: buckets,
      help: help
    }
  end

  @parsed Enum.map(@families, parse)

  # The places of a scope, in order, with their numbers. Number 1 is that of `failed/0`.
  places = fn family ->
    case family do
      %{type: :histogram} -> for n <- 0..(length(family.buckets) + 1), do: {family.key, n}
      %{label: nil} -> [{family.key, nil}]
      %{label: {_name, values}} -> for value <- values, do: {family.key, value}
    end
  end

  layout = fn scope ->
    for(%{scope: ^scope} = family <- @parsed, place <- places.(family), do: place)
    |> Enum.with_index(2)
  end

  @doc "Returns all metrics, in the order in which they are shown."
  @spec all() :: [t()]
  def all, do: unquote(Macro.escape(@parsed))

  @doc "Returns how many places a row of the scope has."
  @spec width(scope()) :: pos_integer()
  for scope <- [:run, :group, :pool] do
    def width(unquote(scope)), do: unquote(length(layout.(scope)) + 1)
  end

  @doc "Returns the place in which failures are kept that no start has followed yet."
  @spec failed() :: pos_integer()
  def failed, do: 1

  @doc "Returns the place of a counter that has no label but its scope's, or the first place of a histogram."
  @spec place(atom()) :: pos_integer()
  for scope <- [:run, :group, :pool],
      {{key, first}, index} <- layout.(scope),
      first in [nil, 0] do
    def place(unquote(key)), do: unquote(index)
  end

  @doc "Returns the place of a counter with that value of its other label."
  @spec place(atom(), atom()) :: pos_integer()
  for scope <- [:run, :group, :pool],
      {{key, value}, index} <- layout.(scope),
      is_atom(value) and value != nil do
    def place(unquote(key), unquote(value)), do: unquote(index)
  end

  @doc "Returns the number of the bucket that a duration in microseconds is in, from 0."
  @spec bucket(atom(), non_neg_integer()) :: non_neg_integer()
  for %{type: :histogram} = family <- @parsed do
    for {bound, index} <- Enum.with_index(family.buckets) do
      def bucket(unquote(family.key), us) when us <= unquote(round(bound * 1_000_000)),
        do: unquote(index)
    end

    def bucket(unquote(family.key), _us), do: unquote(length(family.buckets))
  end

  @doc "Returns how many places behind the first bucket the sum of a histogram is."
  @spec sum(atom()) :: pos_integer()
  for %{type: :histogram} = family <- @parsed do
    def sum(unquote(family.key)), do: unquote(length(family.buckets) + 1)
  end
end
