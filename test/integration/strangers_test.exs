defmodule Snakepit.StrangersTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, BeamPort, Family, ProcScan, Program, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  @nobody 65_534
  @group 2000
  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]

  # What a stranger writes who wants a process dead: a guardian that has to be ended, a worker, and one
  # that was adopted.
  defp plant(directory, victim) do
    {:ok, {^victim, identity}} = Snakepit.Native.process_lookup(victim)
    File.mkdir_p!(directory)
    {:ok, journal} = Snakepit.Ledger.Journal.open(directory)
    run_id = Path.basename(directory)
    :ok = Snakepit.Ledger.Journal.append(journal, {:guardian, identity})

    worker = {:worker, "w", run_id, :active, victim, victim, identity, nil, ["sleep"], 0}
    :ok = Snakepit.Ledger.Journal.append(journal, worker)
    Snakepit.Native.journal_close(journal)
    note = <<byte_size(identity)::32, identity::binary>>
    File.write!(Path.join(directory, "adopted"), note)
  end

  defp give(path, uid, gid) do
    {_output, 0} = System.cmd("chown", ["-R", "#{uid}:#{gid}", path])
  end

  defp open(path, how), do: {_output, 0} = System.cmd("chmod", ["-R", how, path])

  test "runs that others can have written are not read, and say so" do
    data_dir = Beam.temporary_directory()
    victim = Program.sleeper()

    # By whom it was planted, and how.
    plant(Path.join(data_dir, "foreign"), victim)
    give(Path.join(data_dir, "foreign"), @nobody, @nobody)

    plant(Path.join(data_dir, "grouped"), victim)
    open(Path.join(data_dir, "grouped"), "g+w")

    plant(Path.join(data_dir, "anybody"), victim)
    open(Path.join(data_dir, "anybody"), "a+w")

    plant(Path.join(data_dir, "onefile"), victim)
    File.chmod!(Path.join(data_dir, "onefile/adopted"), 0o666)

    elsewhere = Path.join(Beam.temporary_directory(), "linked7")
    plant(elsewhere, victim)
    give(elsewhere, @nobody, @nobody)
    File.ln_s!(elsewhere, Path.join(data_dir, "linked7"))

    beam = Beam.launch([data_dir: data_dir] ++ @config)
    said = said_until_started(beam.port, "")
    assert ProcScan.running?(victim)
    assert said =~ "5 runs in #{data_dir} are not read, because others can have written there"
    assert said =~ "foreign"
  end

  defp said_until_started(port, said) do
    receive do
      {^port, {:data, {:eol, "started"}}} -> said
      {^port, {:data, {_eol, line}}} -> said_until_started(port, said <> line <> "\n")
      {^port, {:exit_status, status}} -> flunk("ended with #{status}: #{said}")
    after
      60_000 -> flunk("did not start: #{said}")
    end
  end

  for {volume, owner, group, mode} <- [
        {"with fsGroup", 0, 2000, 0o2775},
        {"that is an emptyDir", 0, 0, 0o777},
        {"that is sticky", 0, 0, 0o1777},
        {"of its own that its group may write to", 65_534, 2000, 0o2775}
      ] do
    test "a volume #{volume}: a private directory below it is used, and found again" do
      volume = Beam.temporary_directory()
      give(volume, unquote(owner), unquote(group))
      File.chmod!(volume, unquote(mode))
      victim = Program.sleeper()

      # Whoever can write there plants, and is not read.
      plant(Path.join(volume, "planted"), victim)
      give(Path.join(volume, "planted"), @nobody, @group)

      one = start_as_nobody(volume)
      private = Path.join(volume, "snakepit-#{@nobody}")
      assert Beam.run(one, "Snakepit.Run.current!().data_dir") == private
      assert %{uid: @nobody, mode: mode} = File.stat!(private)
      assert Bitwise.band(mode, 0o777) == 0o700
      family = Family.start(one)
      Beam.kill_with_guardian(one)
      assert length(Family.members(family)) == 4

      two = start_as_nobody(volume)
      assert Family.members(family) == []
      assert Beam.run(two, "Snakepit.Run.current!().data_dir") == private
      assert ProcScan.running?(victim)
    end
  end

  test "a volume whose group was given all rights again is closed to it, and used" do
    volume = Beam.temporary_directory()
    give(volume, 0, @group)
    File.chmod!(volume, 0o2775)
    one = start_as_nobody(volume)
    instance = Beam.run(one, "Snakepit.Run.current!().instance")
    run_id = Beam.run(one, "Snakepit.run_id()")
    Beam.kill_with_guardian(one)

    # As the kubelet does when a pod is made.
    private = Path.join(volume, "snakepit-#{@nobody}")
    {_output, 0} = System.cmd("chgrp", ["-R", "#{@group}", volume])
    open(volume, "g+rwXs")
    victim = Program.sleeper()
    plant(Path.join(private, "planted"), victim)
    give(Path.join(private, "planted"), 1, @group)

    two = start_as_nobody(volume)
    assert ProcScan.running?(victim)
    assert Beam.run(two, "Snakepit.Run.current!().instance") == instance
    assert Bitwise.band(File.stat!(private).mode, 0o777) == 0o700
    # What the group can have written is left as it was.
    assert File.exists?(Path.join([private, run_id, "ledger.dets"]))
  end

  test "a private directory that somebody else has made there is refused, and so is a link" do
    volume = Beam.temporary_directory()
    File.chmod!(volume, 0o777)
    private = Path.join(volume, "snakepit-#{@nobody}")
    File.mkdir!(private)
    give(private, 1, 1)
    assert refusal(volume) =~ "#{private} belongs to another user (1)"

    File.rmdir!(private)
    target = Path.join(Beam.temporary_directory(), "target")
    File.mkdir!(target)
    give(target, @nobody, @nobody)
    File.ln_s!(target, private)
    assert refusal(volume) =~ "#{private} cannot be used: not a directory"
    assert File.ls!(target) == []
  end

  @as_nobody ~w(setpriv --reuid 65534 --regid 65534 --groups 2000 --no-new-privs --bounding-set -all)

  defp launch_as_nobody(volume) do
    ebin = Path.join(WrappedBeam.copy(), "ebin")
    options = [wrapper: @as_nobody, ebin: ebin, cd: "/", env: [{"HOME", "/"}]]
    Beam.launch([data_dir: volume] ++ @config, options)
  end

  defp start_as_nobody(volume), do: volume |> launch_as_nobody() |> Beam.await_start()

  defp refusal(volume) do
    beam = launch_as_nobody(volume)
    assert_raise(RuntimeError, fn -> BeamPort.value(beam.port) end).message
  end
end
