defmodule Snakepit do
  @moduledoc """
  Runs external OS processes from Elixir without ever leaving one behind, and without ever
  signalling one that it did not start.

  So far there is the ground on which that stands:

    * `Snakepit.OSProcess` - a process known by more than its pid
    * `Snakepit.ProcessKiller` - signals and ends processes, groups, and whole runs
    * `Snakepit.RunID`, `Snakepit.RunState` - the name and the life of a run

  """
end
