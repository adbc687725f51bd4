defmodule Snakepit.StorageTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, BeamPort, Family, LogFile, OwnDirectory, ProcScan, Shim}
  alias Snakepit.Test.{SmallDisk, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000

  # A file system of its own, in a mount namespace of its own: it goes away with what runs there.
  defp on_tmpfs(directory, size) do
    script = "mount -t tmpfs -o size=#{size},mode=0700 tmpfs #{directory} && exec \"$@\""
    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  # One that turns read-only by itself when it meets an error, as disks that fail do. Nobody can ask
  # for that while files are open.
  defp on_failing_disk(directory, image) do
    script = """
    mount -o loop,errors=remount-ro #{image} #{directory} &&
    chmod 700 #{directory} && exec "$@"
    """

    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  # A second BEAM in which Snakepit is stopped, to see how it starts with other settings.
  defp attempt(beam, config), do: Beam.call(beam, SmallDisk, :start_again, [config])

  defp assert_refused(answer, path, why) do
    assert is_binary(answer)
    assert answer =~ "config :snakepit, :data_dir: #{path} "
    assert answer =~ why
  end

  # What runs is a family of four, with a daemon that nobody can find by its marks.
  defp start_worker(beam, id, token),
    do: Beam.call(beam, SmallDisk, :start_worker, [id, ["sh", "-c", Family.script(token)]])

  defp fill_up(beam, letter), do: Beam.call(beam, SmallDisk, :fill_journal, [letter])

  defp children(beam) do
    {:ok, info} = Beam.run(beam, "Snakepit.Guardian.info()")
    info.children
  end

  defp running_family(beam, id) do
    token = Family.token()
    assert {:ok, _os_pid} = start_worker(beam, id, token)
    Family.await(token)
    token
  end

  # Whatever happens to the disk: what ran before runs on, and nothing new does.
  defp assert_nothing_new(beam, id, reasons) do
    before = children(beam)
    token = Family.token()
    assert {:error, operation, reason, message} = start_worker(beam, id, token)
    # A reservation is written with what follows it, unless it is known that nothing can be.
    assert operation in [:reserve_worker, :activate_worker]
    assert reason in reasons
    assert Family.members(token) == []
    assert children(beam) == before
    # Its owner has ended over it.
    registered = "Snakepit.Pool.ProcessRegistry.worker_registered?(#{inspect(id)})"
    eventually(fn -> not Beam.run(beam, registered) end)
    message
  end

  describe "a data directory that will not do is refused, by key and path:" do
    test "one that others may write to by now, a file, a path below a file" do
      beam = Beam.start()
      open = Beam.temporary_directory()
      assert attempt(beam, data_dir: open) == :started
      before = Enum.sort(File.ls!(open))

      for mode <- [0o777, 0o1777, 0o775, 0o2770] do
        File.chmod!(open, mode)
        assert_refused(attempt(beam, data_dir: open), open, "can by now be written to by others")
        assert Enum.sort(File.ls!(open)) == before
      end

      file = Path.join(Beam.temporary_directory(), "file")
      File.write!(file, "")
      assert_refused(attempt(beam, data_dir: file), file, "cannot be made")
      below = Path.join(file, "below")
      assert_refused(attempt(beam, data_dir: below), below, "cannot be made: not a directory")

      # Half a Snakepit does not run, and a whole one does when that is mended.
      assert Beam.run(beam, "Process.whereis(Snakepit.Supervisor)") == nil
      assert Beam.run(beam, "Snakepit.RunState.current()") == nil
      File.chmod!(open, 0o700)
      assert attempt(beam, data_dir: open) == :started
      assert [_first, _second] = Beam.run_ids(open)
    end

    @tag :root
    test "one of somebody else" do
      beam = Beam.start()
      directory = Beam.temporary_directory()
      File.chown!(directory, 65_534)
      answer = attempt(beam, data_dir: directory)
      assert_refused(answer, directory, "belongs to another user (65534)")
    end

    @tag :root
    test "one that its user may not write to" do
      nobody = ~w(setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all)
      beam = WrappedBeam.start(wrapper: nobody)
      directory = Beam.temporary_directory()
      File.chown!(directory, 65_534)
      File.chmod!(directory, 0o500)
      answer = attempt(beam, data_dir: directory)
      assert_refused(answer, directory, "cannot be written to: permission denied")
      # Nor one that cannot be made.
      below = Path.join(directory, "below/it")
      answer = attempt(beam, data_dir: below)
      assert_refused(answer, below, "cannot be made: permission denied")
      assert_refused(answer, below, "the nearest directory that exists is #{directory})")
      assert_refused(answer, below, "Make it and give it to user 65534, or name one")
      assert_refused(answer, below, "config :snakepit, data_dir: or SNAKEPIT_DATA_DIR")
    end

    @tag :root
    test "one on a read-only file system" do
      directory = Beam.temporary_directory()
      beam = Beam.start([data_dir: directory], wrapper: on_tmpfs(directory, "1m"))
      :ok = Beam.run(beam, "Application.stop(:snakepit)")
      remount(beam, directory, "ro")
      answer = attempt(beam, data_dir: directory)
      assert_refused(answer, directory, "cannot be written to: read-only file system")
      remount(beam, directory, "rw")
      assert attempt(beam, data_dir: directory) == :started
    end

    # With a page to spare the journal finds room, with some more the table does: wherever it ends,
    # the error is the same, and nothing half is left.
    @tag :root
    test "one on a disk that is full, and on one that is almost so" do
      directory = Beam.temporary_directory()
      beam = Beam.start([data_dir: directory], wrapper: on_tmpfs(directory, "256k"))
      :ok = Beam.run(beam, "Application.stop(:snakepit)")

      answers =
        for pages <- 0..6 do
          fill(beam, directory, pages)
          answer = attempt(beam, data_dir: directory)

          unless answer == :started do
            assert_refused(answer, directory, "cannot be written to: no space left on device")
            assert Beam.run(beam, "Process.whereis(Snakepit.Supervisor)") == nil
          end

          empty(beam, directory)
          assert attempt(beam, data_dir: directory) == :started
          # As many runs as have ended, and none that hangs in between.
          assert [] = unclosed(beam, directory)
          :ok = Beam.run(beam, "Application.stop(:snakepit)")
          answer
        end

      assert hd(answers) != :started
      assert List.last(answers) == :started
    end
  end

  # systemd's `SystemCallFilter=~@privileged` forbids `chown`, which OTP calls before each `chmod`.
  test "a sandbox without chown: directories are made with their mode, and workers run" do
    env = [Shim.variable("fails_at"), {"FAILS_AT", "chown * 1"}]
    data_dir = Path.join(Beam.temporary_directory(), "a/b")
    beam = Beam.start([data_dir: data_dir], env: env)
    assert {:error, :eperm} = Beam.run(beam, ~s|File.chmod("#{data_dir}", 0o700)|)
    directory = Beam.run(beam, "Snakepit.Run.current!().directory")

    for path <- [data_dir, directory],
        do: assert(Bitwise.band(File.stat!(path).mode, 0o777) == 0o700)

    token = running_family(beam, "worker")
    assert length(Family.members(token)) == 4
  end

  # Everything else of a start may fail too, and is not the data directory's fault.
  test "a start that fails at another call does not blame the data directory" do
    data_dir = Beam.temporary_directory()
    env = [Shim.variable("fails_at"), {"FAILS_AT", "statx /ns/pid 12"}]
    beam = Beam.launch([data_dir: data_dir], env: env)
    error = assert_raise RuntimeError, fn -> BeamPort.value(beam.port) end
    assert error.message =~ "identify failed: not enough memory (enomem)"
    refute error.message =~ ":data_dir: "
    assert Beam.run_ids(data_dir) == []
  end

  defp remount(beam, directory, mode),
    do:
      assert(
        {_, 0} = Beam.run(beam, ~s|System.cmd("mount", ~w(-o remount,#{mode} #{directory}))|)
      )

  # All but so many pages.
  defp fill(beam, directory, pages), do: Beam.call(beam, SmallDisk, :fill, [directory, pages])
  defp empty(beam, directory), do: Beam.call(beam, SmallDisk, :empty, [directory])

  # As that BEAM sees them.
  defp unclosed(beam, directory), do: Beam.call(beam, SmallDisk, :unclosed, [directory])

  for how <- [:stop, :kill] do
    @tag :root
    test "a disk that becomes full: nothing new starts, the rest runs on and is ended by #{how}" do
      directory = Beam.temporary_directory()
      config = [data_dir: directory, watchdog: [grace_period_ms: 300]]
      beam = Beam.start(config, wrapper: on_tmpfs(directory, "256k"))
      bystanders = Family.bystanders()
      family = running_family(beam, "before")
      fill(beam, directory, 0)

      assert fill_up(beam, "a") == {:reserve_worker, :enospc}
      message = assert_nothing_new(beam, "during", [:enospc])
      assert message =~ "enospc"
      assert length(Family.members(family)) == 4

      # With room again it goes on as if nothing had been.
      empty(beam, directory)
      again = running_family(beam, "after")
      fill(beam, directory, 0)
      assert fill_up(beam, "b") == {:reserve_worker, :enospc}

      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      finish(beam, unquote(how))
      eventually(fn -> not ProcScan.running?(guardian) end, 10_000)
      assert Family.members(family) == []
      assert Family.members(again) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)

      # The run could not be closed, so whoever comes next does.
      if unquote(how) == :stop do
        empty(beam, directory)
        {answer, log} = LogFile.during(beam, Application, :ensure_all_started, [:snakepit])
        assert {:ok, _} = answer
        assert unclosed(beam, directory) == []
        refute log =~ "was removed, but its BEAM is alive"
      end
    end

    unless System.find_executable("mkfs.ext4"), do: @tag(skip: "needs mkfs.ext4")
    @tag :root
    test "a disk that turns read-only: nothing new starts, the rest runs on and is ended by #{how}" do
      directory = Beam.temporary_directory()
      image = Path.join(Beam.temporary_directory(), "image")
      {_, 0} = System.cmd("truncate", ["-s", "8m", image])
      {_, 0} = System.cmd("mkfs.ext4", ["-q", image])
      config = [data_dir: directory, watchdog: [grace_period_ms: 300]]
      beam = Beam.start(config, wrapper: on_failing_disk(directory, image))
      family = running_family(beam, "before")

      :ok = Beam.call(beam, SmallDisk, :fail, [directory])
      assert_nothing_new(beam, "during", [:erofs, :eio])
      assert length(Family.members(family)) == 4
      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      finish(beam, unquote(how))
      eventually(fn -> not ProcScan.running?(guardian) end, 10_000)
      assert Family.members(family) == []
    end

    for {what, up} <- [
          {"the run's directory", "Snakepit.Run.current!().directory"},
          {"the data directory", "Snakepit.Run.current!().data_dir"}
        ] do
      test "#{what} is deleted: nothing new starts, the rest runs on and is ended by #{how}" do
        beam = Beam.start(watchdog: [grace_period_ms: 300])
        family = running_family(beam, "before")
        OwnDirectory.lose(Beam.run(beam, unquote(up)))

        message = assert_nothing_new(beam, "during", [:estale])
        assert message =~ "the run's directory was deleted"
        assert length(Family.members(family)) == 4
        # What ends is forgotten by the guardian at least; the entry stays, for want of a ledger.
        assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.get_stats().alive_workers") == 1

        guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
        finish(beam, unquote(how))
        eventually(fn -> not ProcScan.running?(guardian) end, 10_000)
        assert Family.members(family) == []

        if unquote(how) == :stop do
          assert {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
          running_family(beam, "anew")
        end
      end
    end
  end

  defp finish(beam, :kill), do: Beam.kill(beam)

  # In good order, whatever cannot be written: no process of ours crashes on its way out.
  defp finish(beam, :stop) do
    {answer, log} = LogFile.during(beam, Application, :stop, [:snakepit])
    assert answer == :ok
    assert log =~ "Snakepit cannot record its stop"
    refute log =~ "terminating"
  end
end
