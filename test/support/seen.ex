defmodule Snakepit.Test.Seen do
  @moduledoc "For second BEAMs: what the judge sees at a moment that only they know."

  alias Snakepit.Test.ProcScan

  @doc "Appends a line with how many processes run that have this argument."
  def note(path, argument) do
    count = length(ProcScan.with_argument(argument))
    File.write!(path, "#{count}\n", [:append])
  end
end
