defmodule Mix.Tasks.Snakepit.Reap do
  @shortdoc "Shows what dead runs have left behind, and ends it with --yes"

  @moduledoc """
  Shows what dead runs have left behind, and ends it with --yes.

      $ mix snakepit.reap
      $ mix snakepit.reap --yes

  The next start does the same by itself. The exit status is 1 if there is something that was not ended.

  Looks at the data directory of this project, as a start of it would choose it, and starts neither the project nor a run.
  The work is done by `snakepit_guardian`, whose options these are: `priv/man/snakepit_guardian.1` describes them.
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(arguments), do: Snakepit.CommandLine.task("reap", arguments)
end
