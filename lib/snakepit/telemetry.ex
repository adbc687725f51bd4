defmodule Snakepit.Telemetry do
  @moduledoc """
  Events for `:telemetry`, where the host application has it. Without it nothing is emitted and
  nothing else changes. Each event is emitted after the thing has happened.

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
    # Not a dependency, so not called by name. Nor loaded: until somebody has attached a handler, which
    # loads it, nobody listens; and to search the code path for what is not there takes longer than
    # what some of these events tell of.
    if function_exported?(:telemetry, :execute, 3) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
