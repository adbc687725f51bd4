defmodule Mix.Tasks.Snakepit.History do
  @shortdoc "Shows how runs have ended"

  @moduledoc """
  Shows how runs have ended.

      $ mix snakepit.history
      $ mix snakepit.history --limit 100

  Looks at the data directory of this project, as a start of it would choose it, and starts neither the project nor a run.
  The work is done by `snakepit_guardian`, whose options these are: `priv/man/snakepit_guardian.1` describes them.
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(arguments), do: Snakepit.CommandLine.task("history", arguments)
end
