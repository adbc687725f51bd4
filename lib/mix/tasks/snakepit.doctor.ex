defmodule Mix.Tasks.Snakepit.Doctor do
  @shortdoc "Shows what this place allows, and how to get what is missing"

  @moduledoc """
  Shows what this place allows, and how to get what is missing.

      $ mix snakepit.doctor

  The exit status is 1 if a promise is weaker here, and 2 if Snakepit does not start here.

  Looks at the data directory of this project, as a start of it would choose it, and starts neither the project nor a run.
  The work is done by `snakepit_guardian`, whose options these are: `priv/man/snakepit_guardian.1` describes them.
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(arguments), do: Snakepit.CommandLine.task("doctor", arguments)
end
