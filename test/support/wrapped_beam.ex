defmodule Snakepit.Test.WrappedBeam do
  @moduledoc """
  A second BEAM behind other programs that decide where and as whom it runs: `setpriv`, `unshare`,
  `prlimit`. Once started it is a `Snakepit.Test.Beam` like any other.
  """

  alias Snakepit.Test.Beam

  @doc """
  Starts one. Options:

    * `:config` - that of the application
    * `:env` - variables for it
    * `:wrapper` - program and arguments that come before `elixir`

  It runs a copy of Snakepit that everybody may read, wherever this one is, and makes its data
  directory by itself where everybody may: it has to be its own.
  """
  def start(options \\ []) do
    {config, options} = Keyword.pop(options, :config, [])
    home = Beam.temporary_directory()
    File.chmod!(home, 0o777)
    options = Keyword.update(options, :env, [{"HOME", home}], &[{"HOME", home} | &1])
    places = [ebin: Path.join(copy(), "ebin"), cd: home]
    Beam.start([data_dir: Path.join(home, "data")] ++ config, places ++ options)
  end

  @doc "Snakepit as a directory that any user can read: not a link into somebody's home."
  def copy do
    directory = Path.join(Beam.temporary_directory(), "snakepit")
    File.mkdir_p!(directory)
    source = Application.app_dir(:snakepit)
    {_output, 0} = System.cmd("cp", ["-rL", "#{source}/ebin", "#{source}/priv", directory])
    {_output, 0} = System.cmd("chmod", ["-R", "a+rX", Path.dirname(directory)])
    directory
  end
end
