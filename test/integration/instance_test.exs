defmodule Snakepit.InstanceTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.DataDir.Instance
  alias Snakepit.Test.{Beam, BeamPort, Family, Grave, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  @fixture Path.expand("../fixtures/saves_when_allowed.py", __DIR__)
  @config [graceful_shutdown_timeout_ms: 300]

  # A volume of its own at a path that others have too, as two containers of one image do.
  defp with_a_volume_at(directory) do
    script = "mount -t tmpfs -o mode=0700 tmpfs #{directory} && exec \"$@\""
    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  defp instance(beam), do: Beam.run(beam, "Snakepit.Run.current!().instance")

  @tag :root
  test "two deployments with the same path on two volumes leave each other's workers alone" do
    data_dir = Beam.temporary_directory()
    notes = Beam.temporary_directory()
    options = [wrapper: with_a_volume_at(data_dir)]
    patient = [data_dir: data_dir, watchdog: [grace_period_ms: 60_000]]
    one = Beam.start(patient, options)

    {:ok, worker} =
      Beam.run(one, """
      with {:ok, child} <- Snakepit.Test.Workers.start("saves", ["python3", #{inspect(@fixture)}, #{inspect(notes)}]),
           do: {:ok, child.os_pid}
      """)

    eventually(fn -> File.exists?(Path.join(notes, "up")) end)
    instance = instance(one)
    Beam.kill(one)
    # Its guardian has asked it to end, and gives it a minute.
    eventually(fn -> File.exists?(Path.join(notes, "asked")) end)

    other = Beam.start([data_dir: data_dir] ++ @config, options)
    assert ProcScan.running?(worker)
    assert instance(other) != instance
    File.touch!(Path.join(notes, "allowed"))
    eventually(fn -> not ProcScan.running?(worker) end)
    assert File.exists?(Path.join(notes, "saved"))
  end

  test "it is the directory's: all that start there at once have the same, and so has a later one" do
    data_dir = Beam.temporary_directory()
    beams = for(_ <- 1..3, do: Beam.launch(data_dir: data_dir)) |> Enum.map(&Beam.await_start/1)
    assert [instance] = beams |> Enum.map(&instance/1) |> Enum.uniq()
    for beam <- beams, do: Beam.kill(beam)

    # Also under another name.
    link = Path.join(Beam.temporary_directory(), "link")
    File.ln_s!(data_dir, link)
    assert instance(Beam.start(data_dir: link)) == instance
    assert File.read!(Path.join(data_dir, "instance")) == "snakepit 1 #{instance}\n"
    assert instance(Beam.start()) != instance
    assert instance(Beam.start(data_dir: data_dir, instance: "named")) == "named"
  end

  test "without its file it is that of the runs that are open, and their processes are ended" do
    data_dir = Beam.temporary_directory()
    one = Beam.start(data_dir: data_dir)
    instance = instance(one)
    family = Family.start(one)
    Beam.kill_with_guardian(one)
    File.rm!(Path.join(data_dir, "instance"))

    assert instance(Beam.start([data_dir: data_dir] ++ @config)) == instance
    assert Family.members(family) == []
  end

  test "runs from before there was such a file are reaped" do
    data_dir = Beam.temporary_directory()
    digger = Beam.start(data_dir: data_dir)
    run_id = Grave.run_id()
    sleeper = Snakepit.Test.Program.sleeper()
    user = File.stat!("/proc/self").uid
    hash = :crypto.hash(:sha256, "#{user}:#{data_dir}")
    former = hash |> binary_part(0, 8) |> Base.encode16(case: :lower)

    Beam.run(digger, """
    alias Snakepit.Test.Grave
    directory = Grave.dig(#{inspect(run_id)}, :dead, [], [#{sleeper}])
    record = %{Snakepit.Run.current!().record | run_id: #{inspect(run_id)}, state: :running,
      instance: #{inspect(former)}, beam: #{dead_identity()}, beam_pid: 1}
    Grave.append(directory, [{:run, record}])
    """)

    :ok = Beam.run(digger, "Application.stop(:snakepit)")
    File.rm!(Path.join(data_dir, "instance"))

    next = Beam.start([data_dir: data_dir] ++ @config)
    refute ProcScan.running?(sleeper)
    assert instance(next) == former
    history = Beam.run(next, "Snakepit.RunState.history()")
    assert Enum.any?(history, &(&1.run_id == run_id))
  end

  # Of this boot and namespace, so that it is looked for here.
  defp dead_identity do
    port = Port.open({:spawn_executable, System.find_executable("cat")}, [:binary])
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    {:ok, {^os_pid, identity}} = Snakepit.Native.process_lookup(os_pid)
    Port.close(port)
    eventually(fn -> not ProcScan.running?(os_pid) end)
    inspect(identity, limit: :infinity, binaries: :as_binaries)
  end

  # Each of them could be taken for an instance, or for nothing.
  for {how, damage} <- [
        {"cut in its last digits", quote(do: &binary_part(&1, 0, byte_size(&1) - 9))},
        {"cut before its end of line", quote(do: &binary_part(&1, 0, byte_size(&1) - 1))},
        {"cut in its first word", quote(do: &binary_part(&1, 0, 4))},
        {"emptied", quote(do: fn _ -> "" end)},
        {"overwritten", quote(do: fn _ -> "instance: 7\n" end)},
        {"overwritten at length", quote(do: fn _ -> String.duplicate("x", 5_000) end)}
      ] do
    test "an instance that was #{how} is made again from the runs, and their processes are ended" do
      data_dir = Beam.temporary_directory()
      one = Beam.start(data_dir: data_dir)
      instance = instance(one)
      family = Family.start(one)
      Beam.kill_with_guardian(one)
      path = Path.join(data_dir, "instance")
      File.write!(path, unquote(damage).(File.read!(path)))

      beams = for _ <- 1..2, do: Beam.launch([data_dir: data_dir] ++ @config)
      for beam <- beams, do: assert(beam |> Beam.await_start() |> instance() == instance)
      assert Family.members(family) == []
      assert File.read!(path) == "snakepit 1 #{instance}\n"
      assert Path.wildcard(path <> ".*") == []
    end
  end

  @tag :capture_log
  test "an instance that another start repairs, and whose run it reaps, in between is read again" do
    data_dir = Beam.temporary_directory()
    one = Beam.start(data_dir: data_dir)
    instance = instance(one)
    Beam.kill_with_guardian(one)
    [run] = Beam.run_ids(data_dir)
    File.write!(Path.join(data_dir, "instance"), "")

    # A start that has read the file and listed the runs warns of this one before it reads them.
    foreign = Path.join(data_dir, "0000000")
    File.mkdir!(foreign)
    File.chmod!(foreign, 0o777)

    other = fn ->
      assert Instance.fetch!(data_dir) == instance
      File.rm_rf!(Path.join(data_dir, run))
    end

    at_next_warning(fn -> other |> Task.async() |> Task.await() end)
    assert Instance.fetch!(data_dir) == instance
    refute_received :not_warned
    assert File.read!(Path.join(data_dir, "instance")) == "snakepit 1 #{instance}\n"
  end

  # Filters run in the process that logs, which goes on when they return.
  defp at_next_warning(fun) do
    test = self()
    send(test, :not_warned)

    filter = fn event, _extra ->
      if self() == test do
        receive do
          :not_warned -> fun.()
        after
          0 -> :ok
        end
      end

      event
    end

    :ok = :logger.add_primary_filter(__MODULE__, {filter, nil})
    on_exit(fn -> :logger.remove_primary_filter(__MODULE__) end)
  end

  test "if no run can say what it was, all that start at once come to the same" do
    data_dir = Beam.temporary_directory()
    one = Beam.start(data_dir: data_dir)
    family = Family.start(one)
    Beam.kill_with_guardian(one)
    File.write!(Path.join(data_dir, "instance"), "")
    [run] = Path.wildcard(Path.join(data_dir, "*/lock")) |> Enum.map(&Path.dirname/1)
    for name <- ~w(journal ledger.dets), do: File.rm!(Path.join(run, name))

    beams = for(_ <- 1..3, do: Beam.launch([data_dir: data_dir] ++ @config))
    assert [_] = beams |> Enum.map(&instance(Beam.await_start(&1))) |> Enum.uniq()
    # The run's directory has its id, which is in their lineage.
    assert Family.members(family) == []
  end

  test "a directory of a newer Snakepit is refused, and nothing in it is touched" do
    data_dir = Beam.temporary_directory()
    one = Beam.start(data_dir: data_dir)
    family = Family.start(one)
    Beam.kill_with_guardian(one)
    path = Path.join(data_dir, "instance")
    good = File.read!(path)
    File.write!(path, "snakepit 2 1000-abc and more\n")
    before = Enum.sort(File.ls!(data_dir))

    two = Beam.launch([data_dir: data_dir] ++ @config)
    error = assert_raise RuntimeError, fn -> BeamPort.value(two.port) end

    assert error.message =~
             "config :snakepit, :data_dir: #{data_dir} was written by a newer Snakepit"

    assert error.message =~ "(layout 2, this one knows 1)"
    assert Enum.sort(File.ls!(data_dir)) == before
    assert length(Family.members(family)) == 4

    File.write!(path, good)
    Beam.start([data_dir: data_dir] ++ @config)
    assert Family.members(family) == []
  end
end
