defmodule Snakepit.OperationGuideTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, GuardianCommand}

  @moduletag :long

  # As the guide has them.
  @shows """
  snakepit_guardian ps
  snakepit_guardian tree
  snakepit_guardian history
  snakepit_guardian doctor
  """
  @reaps """
  snakepit_guardian reap || snakepit_guardian reap --yes
  """
  @init """
  snakepit_guardian init -- bin/my_app start
  """

  defp shell(script, data_dir, options \\ []) do
    path = "#{Path.dirname(GuardianCommand.executable())}:#{System.get_env("PATH")}"
    env = [{"PATH", path}, {"SNAKEPIT_DATA_DIR", data_dir}]
    System.cmd("sh", ["-ec", script], [env: env, stderr_to_stdout: true] ++ options)
  end

  test "what the guide shows is what people see, and reaping ends what is left" do
    beam = Beam.start()
    token = Family.start(beam)
    {text, status} = shell(@shows, beam.data_dir)
    assert status in [0, 1] and text =~ ~r/running  family/ and text =~ "kernel"
    Beam.kill_with_guardian(beam)
    # The lock goes with the last thread of the BEAM.
    eventually(fn -> match?({_text, 0}, shell("! snakepit_guardian reap", beam.data_dir)) end)
    {text, 0} = shell(@reaps, beam.data_dir)
    assert text =~ "4 of 4 ended"
    assert Family.members(token) == []
  end

  test "the entry point of a container runs the release" do
    directory = Beam.temporary_directory()
    File.mkdir_p!(Path.join(directory, "bin"))
    program = Path.join(directory, "bin/my_app")
    File.write!(program, "#!/bin/sh\necho \"$1 below $(cat /proc/$PPID/comm)\"\nexit 3\n")
    File.chmod!(program, 0o755)
    assert {"start below snakepit_guardi\n", 3} = shell(@init, directory, cd: directory)
  end
end
