defmodule Snakepit.Telemetry do
  @moduledoc """
  Events for `:telemetry`, where the host application has it. Without it nothing is emitted and
  nothing else changes. `Snakepit.Metrics` counts them in any case, if it is on. Each event is emitted after the thing has happened.

  Durations whose name ends in `_ms` are milliseconds of monotonic time.

  ## Spans

  What takes time is a span, as `:telemetry.span/3` emits them, so that bridges to tracing work: an event
  that ends in `:start` (`system_time`, `monotonic_time`), then one that ends in `:stop` (`duration` in
  native units, `monotonic_time`), or in `:exception` (`duration`; `kind`, `reason` and `stacktrace` in the
  metadata). All of a span have the same `telemetry_span_context`. What fails without an exception has an
  `error` in the metadata of its `:stop`, a `Snakepit.Error`.

  | span | what | metadata | added by `:stop` |
  |---|---|---|---|
  | `[:snakepit, :launch]` | a worker's process: reserved, spawned, recorded, executed | `worker_id` | `os_pid` |
  | `[:snakepit, :shutdown]` | the end of a worker's process, tree and entry | `worker_id`, `os_pid`, `reason` | `method` |
  | `[:snakepit, :command]` | a program run by `Snakepit.cmd/3` or `Snakepit.run/3` | `operation`, `program` | `status`, `signal`, or `limit` |
  | `[:snakepit, :checkout]` | a caller that waits for a worker of a pool | `pool` | `worker` |
  | `[:snakepit, :reap]` | what dead runs have left behind, at the start | `run_id` | `runs`, how many |

  ## Events

  ### `[:snakepit, :run, :started]`

  The run has its id and its directory, and the disk knows of it.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | this run |
  | `duration_ms` | how long the claim took | | |

  ### `[:snakepit, :run, :reaped]`

  What a dead run had left behind has been dealt with. Emitted at the next start, once for each run.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | the dead run; `nil` for processes whose run has no ledger any more |
  | `duration_ms` | since the reaping began | `terminated_by` | `:guardian`, `:cleanup`, `:reboot` or `:elsewhere`; `nil` if processes survived |
  | | | `found` | processes that were still there, or that the guardian had ended |
  | | | `killed` | those of them that did not end when asked |
  | | | `ambiguous` | those that may be someone else, and were left alone |

  ### `[:snakepit, :run, :terminated]`

  The application has stopped and let go of its run.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | this run |
  | `duration_ms` | how long the run lasted | `terminated_by` | `:clean_shutdown`, or `:cleanup` if something survived |
  | | | `found`, `killed`, `ambiguous` | what the barrier found |

  ### `[:snakepit, :process, :started]`

  A worker's process runs and is ready.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `startup_duration_ms` | since the worker began to start it | `os_pid` | its OS pid |
  | | | `beam_pid` | OS pid of this BEAM |

  ### `[:snakepit, :process, :restarted]`

  A worker's process was lost with the guardian, and another runs in its place and is ready. There is no
  `:terminated` and no `:started` for it.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `duration_ms` | since the worker noticed | `os_pid`, `previous_os_pid` | the OS pids, now and before |
  | | | `reason` | `:guardian_down` |

  ### `[:snakepit, :process, :terminated]`

  A worker's process and everything that it had started are gone.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id`, `os_pid` | its worker, and its OS pid |
  | `uptime_ms` | since the worker began to start it | `exit_code` | its status, `nil` if a signal ended it |
  | `user_us`, `system_us` | microseconds of CPU time, with those of the children that it had waited for; missing if the guardian was lost | `exit_signal` | the signal that ended it, or `nil` |
  | `max_rss_kb` | the most memory that one of them had | | |
  | | | `reason` | what the worker exits with |
  | | | `output_tail` | the end of what it wrote |

  ### `[:snakepit, :process, :cleanup_completed]`

  A worker has cleaned up after its process: the tree, the connections, and the entry in the registry.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `cleanup_duration_ms` | how long it took | `cleanup_method` | `:exited` (by itself), `:graceful` (asked first), `:forced` (killed), `:guardian_down` |
  | | | `success` | whether all of it is gone |

  ### `[:snakepit, :process, :notified]`

  A worker's process has said of itself that something has changed, by `sd_notify(3)`.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id`, `os_pid` | its worker, and its OS pid |
  | | | `state` | `:starting`, `:ready`, `:reloading` or `:stopping` |
  | | | `status` | the text of its last `STATUS=`, or `nil` |

  ### `[:snakepit, :pool, :recycled]`

  A worker of a pool has worn out, and another one is ready and takes its place.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `pool` | the pool's name, else its `:id`, else its pid |
  | | | `worker_id` | the worker that leaves |
  | | | `reason` | `:max_requests`, `:max_age` or `:max_memory` |

  ### `[:snakepit, :heartbeat, :ping_sent]`

  A ping was sent to a worker's process.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `timestamp` | milliseconds since the epoch, as in the ping | `worker_pid` | the worker's BEAM process |

  ### `[:snakepit, :heartbeat, :pong_received]`

  A pong was received.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `latency_ms` | from the ping to the pong | `worker_pid` | the worker's BEAM process |

  ### `[:snakepit, :heartbeat, :timeout]`

  No pong arrived within the threshold.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker |
  | `missed_count` | misses in a row | `timeout_threshold_ms` | how long it had |

  ### `[:snakepit, :cleanup, :start]`, `[:snakepit, :cleanup, :success]`, `[:snakepit, :cleanup, :timeout]`

  Everything of this run is to be ended; it is gone; or something is still there.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | this run |
  | `duration_ms` | since it began | `os_pids` | registered processes at the start; survivors for `:timeout` |

  ### `[:snakepit, :audit, :completed]`

  Registry, guardian and process table were compared.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | this run |
  | `orphans` | processes that nobody looked after, ended | | |
  | `stale_entries` | entries without a process, forgotten | | |
  | `duration_ms` | how long it took | | |

  ### `[:snakepit, :watchdog, :beam_death_detected]`

  A guardian noticed that its BEAM was gone. Read from its obituary by the next start.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `run_id` | the dead run |
  | `detection_time_ms` | when, in milliseconds since the epoch | `beam_pid` | the BEAM's OS pid |
  | | | `post_mortem` | `true` |

  ### `[:snakepit, :watchdog, :process_terminated]`

  A guardian whose BEAM was gone has ended a process. Read from its obituary by the next start.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `worker_id` | its worker; empty for a daemon that nobody claims |
  | `termination_duration_ms` | since the BEAM's death was noticed | `method` | `:sigterm` or `:sigkill` |
  | | | `post_mortem` | `true` |

  ### `[:snakepit, :watchdog, :silent]`

  The guardian does not answer: it was stopped by a signal or a debugger, or hangs.

  | measurement | | metadata | |
  |---|---|---|---|
  | `silent_ms` | since it was asked | `guardian_pid` | OS pid of the guardian |
  | | | `state` | letter of its state in `/proc`; `"T"` and `"t"` are stopped |
  | | | `action` | `:continued` with SIGCONT, or `:killed`; another one is started then |

  ### `[:snakepit, :watchdog, :started]`

  The guardian is there and watches the BEAM.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `beam_pid` | OS pid of this BEAM |
  | | | `guardian_pid` | OS pid of the guardian |

  """

  alias Snakepit.Dashboard.Feed
  alias Snakepit.Metrics.{Recorder, Store}

  @doc false
  # `fun` returns its result and what is added to the metadata. Not `:telemetry.span/3`, for the reason
  # below; its events are the same.
  @spec span([atom()], map(), (() -> {result, map()})) :: result when result: term()
  def span(event, metadata, fun) do
    if function_exported?(:telemetry, :execute, 3) or Store.current() != nil or shown?(event),
      do: traced(event, Map.put(metadata, :telemetry_span_context, make_ref()), fun),
      else: elem(fun.(), 0)
  end

  # The only span that a dashboard shows. Others are too frequent to look for one.
  defp shown?(event), do: event == [:snakepit, :launch] and Feed.there?()

  defp traced(event, metadata, fun) do
    begun = System.monotonic_time()
    times = %{monotonic_time: begun, system_time: System.system_time()}
    execute(event ++ [:start], times, metadata)

    try do
      fun.()
    catch
      kind, reason ->
        failure = %{kind: kind, reason: reason, stacktrace: __STACKTRACE__}
        execute(event ++ [:exception], times_since(begun), Map.merge(metadata, failure))
        :erlang.raise(kind, reason, __STACKTRACE__)
    else
      {result, more} ->
        execute(event ++ [:stop], times_since(begun), Map.merge(metadata, more))
        result
    end
  end

  defp times_since(begun) do
    now = System.monotonic_time()
    %{monotonic_time: now, duration: now - begun}
  end

  @doc false
  @spec execute([atom()], map(), map()) :: :ok
  def execute(event, measurements, metadata) do
    Recorder.record(event, measurements, metadata)
    Feed.record(event, measurements, metadata)

    # `:telemetry` is no dependency, so it is not called by name. It is not loaded either: attaching a handler loads
    # it, and until then there is none. To search the code path for a module that is not there takes longer than
    # some of the things that these events report.
    if function_exported?(:telemetry, :execute, 3) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
