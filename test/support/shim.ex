defmodule Snakepit.Test.Shim do
  @moduledoc """
  Libraries that are loaded into a second BEAM to change what the system tells it. The C compiler is the
  one that Rust links with.
  """

  alias Snakepit.Test.Beam

  @fixtures Path.expand("../fixtures", __DIR__)

  @doc "Compiles a fixture. Gives the variable that loads it."
  def variable(name) do
    library = Path.join(Beam.temporary_directory(), name <> ".so")
    source = Path.join(@fixtures, name <> ".c")

    {output, status} =
      System.cmd("cc", ["-shared", "-fPIC", "-o", library, source, "-ldl"], stderr_to_stdout: true)

    if status != 0, do: raise("cannot compile #{source}: #{output}")
    {"LD_PRELOAD", library}
  end
end
