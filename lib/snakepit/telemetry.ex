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
    # Not a dependency, so not called by name.
    if Code.ensure_loaded?(:telemetry) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
