defmodule Snakepit.Test.GuardianCommand do
  @moduledoc """
  The commands of `snakepit_guardian`, run as a script would: by their path, with nothing of this BEAM's run.
  """

  alias Snakepit.Bench.JSON

  @doc "Where the program is."
  def executable, do: Application.app_dir(:snakepit, "priv/native/snakepit_guardian")

  @doc "Runs it. Returns what it wrote to both outputs, and its status."
  def run(arguments, options \\ []) do
    System.cmd(executable(), arguments, [stderr_to_stdout: true] ++ options)
  end

  @doc "Runs it with `--json`. Returns what it said, as Python understands it too, and its status."
  def json(arguments, options \\ []) do
    {text, status} = System.cmd(executable(), arguments ++ ["--json"], options)
    path = Path.join(System.tmp_dir!(), "answer-#{System.unique_integer([:positive])}.json")
    File.write!(path, text)

    try do
      {_pretty, 0} = System.cmd("python3", ["-m", "json.tool", path])
    after
      File.rm!(path)
    end

    {JSON.decode!(text), status}
  end
end
