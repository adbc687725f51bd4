defmodule Snakepit do
  @moduledoc """
  Runs external OS processes from Elixir without ever leaving one behind, and without ever
  signalling one that it did not start.

  So far there are:

    * `Snakepit.Guardian` - starts, watches and ends processes, through a helper that outlives the BEAM
      by as long as the clean-up takes
    * `Snakepit.Command` - what to run
    * `Snakepit.OSProcess` - a process known by more than its pid
    * `Snakepit.ProcessKiller` - signals and ends processes, groups, and whole runs
    * `Snakepit.RunID`, `Snakepit.RunState` - the name and the life of a run

  """
end
