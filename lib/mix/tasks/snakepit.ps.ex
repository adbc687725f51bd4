defmodule Mix.Tasks.Snakepit.Ps do
  @shortdoc "Shows the workers of all runs that are not over"

  @moduledoc """
  Shows the workers of all runs that are not over.

      $ mix snakepit.ps
      $ mix snakepit.ps --watch
      $ mix snakepit.ps --json

  Looks at the data directory of this project, as a start of it would choose it, and starts neither the project nor a run.
  The work is done by `snakepit_guardian`, whose options these are: `priv/man/snakepit_guardian.1` describes them.
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(arguments), do: Snakepit.CommandLine.task("ps", arguments)
end
