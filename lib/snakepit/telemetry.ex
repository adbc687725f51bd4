defmodule Snakepit.Telemetry do
  @moduledoc """
  Events for `:telemetry`, where the host application has it. Without it nothing is emitted and
  nothing else changes. Each event is emitted after the thing has happened.

  Durations are milliseconds of a clock that nobody sets.

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
  | `duration_ms` | since the reaping began | `terminated_by` | `:guardian`, `:cleanup` or `:reboot`; `nil` if processes survived |
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

  ### `[:snakepit, :watchdog, :started]`

  The guardian is there and watches the BEAM.

  | measurement | | metadata | |
  |---|---|---|---|
  | `count` | 1 | `beam_pid` | OS pid of this BEAM |
  | | | `guardian_pid` | OS pid of the guardian |

  """

  @doc false
  @spec execute([atom()], map(), map()) :: :ok
  def execute(event, measurements, metadata) do
    # Not a dependency, so not called by name.
    if Code.ensure_loaded?(:telemetry) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
