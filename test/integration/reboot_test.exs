defmodule Snakepit.RebootTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, Program, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  # Another container, in which pids are other processes. The BEAM is not its first process.
  @container ~w(unshare --pid --fork --mount-proc --kill-child sh -c) ++ [~s("$@"; exit), "sh"]
  # The same, in which it is.
  @first ~w(unshare --pid --fork --mount-proc --kill-child)

  # Where these files say something else than they do here. The first is what tells a boot from another,
  # the second a machine.
  defp another(files) do
    directory = Beam.temporary_directory()

    mounts =
      for {path, text} <- files do
        file = Path.join(directory, Path.basename(path))
        File.write!(file, text)
        "mount --bind #{file} #{path} && "
      end

    ["unshare", "--mount", "sh", "-c", "#{mounts}exec \"$@\"", "sh"]
  end

  defp another_boot(digit \\ "1"),
    do: %{"/proc/sys/kernel/random/boot_id" => "#{digit}1111111-2222-3333-4444-555555555555\n"}

  defp another_machine(digit \\ "1"),
    do: Map.put(another_boot(digit), "/etc/machine-id", String.duplicate(digit, 32) <> "\n")

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

  defp works?(beam) do
    token = Family.token()
    Beam.call(beam, Family, :launch, [token])
    Family.await(token)
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    Family.members(token) == []
  end

  defp files(data_dir, id), do: Enum.sort(File.ls!(Path.join(data_dir, id)))

  defp history(beam), do: Beam.run(beam, "Snakepit.RunState.history()")

  test "after a reboot what an earlier run noted is nobody that could be killed" do
    if not match?({:ok, <<_::binary-size(32), _::binary>>}, File.read("/etc/machine-id")) do
      IO.puts("skipped: this machine has no /etc/machine-id")
    else
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      {id, family} = crashed(data_dir)

      beam = Beam.start([data_dir: data_dir], wrapper: another(another_boot()))
      # They are there all right, and for this BEAM they are not.
      assert length(Family.members(family)) == 4
      assert [%{run_id: ^id, terminated_by: :reboot, found: 0, killed: 0}] = history(beam)
      assert works?(beam)
      assert length(Family.members(family)) == 4
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  for place <- [:container, :machine] do
    test "in another #{place} a dead run is left as it is, for a start in its own place" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      {id, family} = crashed(data_dir)
      before = files(data_dir, id)

      beam = Beam.start([data_dir: data_dir], wrapper: wrapper(unquote(place)))
      assert length(Family.members(family)) == 4
      assert history(beam) == []
      assert files(data_dir, id) == before
      assert works?(beam)
      assert length(Family.members(family)) == 4

      # The daemon among them carries no marker: only its ledger knows it.
      again = Beam.start(data_dir: data_dir)
      assert Family.members(family) == []
      assert %{terminated_by: :cleanup, found: 4} = Enum.find(history(again), &(&1.run_id == id))
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "in another #{place} a run that lives is left alone where locks do not exclude" do
      data_dir = Beam.temporary_directory()
      living = Beam.start(data_dir: data_dir)
      id = Beam.run(living, "Snakepit.run_id()")
      family = Family.start(living)
      before = files(data_dir, id)
      # Another lock than the one that it holds.
      File.rm!(Path.join([data_dir, id, "lock"]))

      other = Beam.start([data_dir: data_dir], wrapper: wrapper(unquote(place)))
      assert history(other) == []
      assert before -- files(data_dir, id) == []
      another = Family.start(living, "another")
      Beam.kill_with_guardian(living)

      again = Beam.start(data_dir: data_dir)
      assert Family.members(family) ++ Family.members(another) == []
      assert [%{run_id: ^id, found: 8}] = history(again)
    end
  end

  test "a run whose BEAM was the first of its container is closed by a start in the next one" do
    data_dir = Beam.temporary_directory()
    beam = Beam.start([data_dir: data_dir], wrapper: @first)
    id = Beam.run(beam, "Snakepit.run_id()")
    family = Family.start(beam)
    # So that the next one does not get its number.
    hold = "exec 9</proc/#{beam.os_pid}/ns/pid; echo held; exec sleep 600"
    Program.start("sh", ["-c", hold], ready: true)
    # Its guardian cannot outlive it.
    Beam.kill(beam)
    Beam.await_end(beam)
    # The kernel ends the others with it, and may be at it still.
    eventually(fn -> Family.members(family) == [] end)

    next = Beam.start([data_dir: data_dir], wrapper: @container)
    assert [%{run_id: ^id, terminated_by: :elsewhere, found: 0}] = history(next)
    assert files(data_dir, id) -- ["guardian.log", "obituary"] == ["history", "lock"]
  end

  test "a run of another machine of which nothing was heard for a week is closed" do
    data_dir = Beam.temporary_directory()
    {id, _family} = crashed(data_dir)
    {silent, _family} = crashed(data_dir, another(another_machine()))
    age(Path.join(data_dir, silent), 8 * 86_400)
    age(Path.join(data_dir, id), 6 * 86_400)

    beam = Beam.start([data_dir: data_dir], wrapper: another(another_machine("2")))
    assert [%{run_id: ^silent, terminated_by: :elsewhere}] = history(beam)
    assert "ledger.dets" in files(data_dir, id) or "journal" in files(data_dir, id)
  end

  test "a BEAM gives signs of life" do
    data_dir = Beam.temporary_directory()
    beam = Beam.start(data_dir: data_dir)
    id = Beam.run(beam, "Snakepit.run_id()")
    directory = Path.join(data_dir, id)
    age(directory, 8 * 86_400)
    then = File.stat!(directory, time: :posix).mtime
    Beam.run(beam, "Snakepit.Auditor.audit()")
    assert File.stat!(Path.join(directory, "alive"), time: :posix).mtime > then + 7 * 86_400
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    refute "alive" in files(data_dir, id)
  end

  test "elsewhere, a damaged ledger kills nobody either" do
    data_dir = Beam.temporary_directory()
    {id, family} = crashed(data_dir)
    # The record of the run is in both, so that nothing says any more where it ran.
    for file <- ["ledger.dets", "journal"],
        do: File.write(Path.join([data_dir, id, file]), "garbage")

    beam = Beam.start([data_dir: data_dir], wrapper: @container)
    assert length(Family.members(family)) == 4
    assert [%{run_id: ^id, killed: 0}] = history(beam)
  end

  # As if everything in it had been written so many seconds ago.
  defp age(directory, seconds) do
    for name <- File.ls!(directory) ++ ["."] do
      path = Path.join(directory, name)
      %{mtime: mtime} = File.lstat!(path, time: :posix)
      if File.lstat!(path).type != :symlink, do: File.touch!(path, mtime - seconds)
    end
  end

  defp wrapper(:container), do: @container
  defp wrapper(:machine), do: another(another_machine())
end
