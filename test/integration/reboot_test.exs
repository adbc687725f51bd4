defmodule Snakepit.RebootTest do
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag timeout: 120_000
  @moduletag :root

  # Another boot: the same machine, and the kernel says another id.
  defp rebooted(directory) do
    other = Path.join(directory, "boot_id")
    File.write!(other, "11111111-2222-3333-4444-555555555555\n")
    script = "mount --bind #{other} /proc/sys/kernel/random/boot_id && exec \"$@\""
    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  # Another container, in which pids are other processes.
  @elsewhere ~w(unshare --pid --fork --mount-proc --kill-child)

  defp crashed(data_dir, wrapper \\ ["env"]) do
    beam = Beam.start([data_dir: data_dir], wrapper: wrapper)
    id = Beam.run(beam, "Snakepit.run_id()")
    token = Family.start(beam, "w")
    Beam.kill_with_guardian(beam)

    on_exit(fn ->
      for os_pid <- Family.members(token), do: System.cmd("kill", ["-KILL", "#{os_pid}"])
    end)

    {id, token}
  end

  for place <- [:rebooted, :elsewhere] do
    test "what an earlier run noted #{place} is nobody that could be killed" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      {id, family} = crashed(data_dir)

      beam = Beam.start([data_dir: data_dir], wrapper: wrapper(unquote(place)))
      # They are there all right, and for this BEAM they are not.
      assert length(Family.members(family)) == 4
      assert Enum.all?(bystanders, &ProcScan.running?/1)

      history = Beam.run(beam, "Snakepit.RunState.history()")
      assert [%{run_id: ^id, terminated_by: :reboot, found: 0, killed: 0}] = history
      # And it works there.
      token = Family.token()
      Beam.run(beam, Family.start_code(token))
      Family.await(token)
      :ok = Beam.run(beam, "Application.stop(:snakepit)")
      assert Family.members(token) == []
      assert length(Family.members(family)) == 4
    end
  end

  test "elsewhere, a damaged ledger kills nobody either" do
    data_dir = Beam.temporary_directory()
    {id, family} = crashed(data_dir)
    # The record of the run is in both, so that nothing says any more where it ran.
    for file <- ["ledger.dets", "journal"],
        do: File.write(Path.join([data_dir, id, file]), "garbage")

    beam = Beam.start([data_dir: data_dir], wrapper: @elsewhere)
    assert length(Family.members(family)) == 4
    assert [%{run_id: ^id, killed: 0}] = Beam.run(beam, "Snakepit.RunState.history()")
  end

  defp wrapper(:rebooted), do: rebooted(Beam.temporary_directory())
  defp wrapper(:elsewhere), do: @elsewhere
end
