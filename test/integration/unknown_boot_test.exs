defmodule Snakepit.UnknownBootTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, Program, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  # What systemd's `ProcSubset=pid` does: without /proc/sys nobody says which boot this is.
  @subset ["unshare", "--mount", "sh", "-c"] ++
            ["mount -t proc -o subset=pid proc /proc && exec \"$@\"", "sh"]

  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]

  @mount ~w(--mount mount -t proc -o subset=pid proc /proc)
  with {output, status} when status != 0 <- System.cmd("unshare", @mount, stderr_to_stdout: true) do
    IO.puts("skipped: /proc with subset=pid: #{output}")
    @moduletag skip: "no /proc with subset=pid"
  end

  defp start(data_dir), do: Beam.start([data_dir: data_dir] ++ @config, wrapper: @subset)

  test "workers start and stop, and the next start ends what is marked or has its lineage" do
    bystanders = Family.bystanders()
    data_dir = Beam.temporary_directory()
    first = start(data_dir)
    refute Beam.run(first, ~s|File.exists?("/proc/sys/kernel/random/boot_id")|)
    id = Beam.run(first, "Snakepit.run_id()")

    # One that is stopped.
    stopped = Family.token()
    child = Beam.call(first, Family, :launch, [stopped])
    Family.await(stopped)
    assert Beam.call(first, Snakepit.Guardian, :stop, [child]) == :ok
    assert Family.members(stopped) == []

    # And one that outlives BEAM and guardian.
    family = Family.start(first)
    assert Beam.run(first, "Snakepit.Auditor.audit().orphans") == 0
    Beam.kill_with_guardian(first)
    assert length(Family.members(family)) == 4

    second = start(data_dir)
    assert Family.members(family) == []
    history = Beam.run(second, "Snakepit.RunState.history()")
    assert %{found: 4, terminated_by: :cleanup} = Enum.find(history, &(&1.run_id == id))
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  # Handles are counted from each boot on, in step with pids: after a reset the same pid has the same one.
  for kind <- [:guardian, :worker] do
    test "who has pid and handle of a #{kind} of another life is left alone" do
      stranger = Program.sleeper()
      data_dir = Beam.temporary_directory()
      first = start(data_dir)

      # As the last life would have recorded it, had it been there then.
      directory =
        Beam.run(first, """
        identity = Snakepit.Test.Grave.identity(#{stranger})
        {:ok, {_, own}} = Snakepit.Native.process_lookup(String.to_integer(System.pid()))
        id = Snakepit.Test.Grave.run_id()
        noted = if #{inspect(unquote(kind))} == :worker, do: [{"w", #{stranger}, identity}], else: []
        directory = Snakepit.Test.Grave.dig(id, own, noted, [])
        if #{inspect(unquote(kind))} == :guardian, do: Snakepit.Test.Grave.append(directory, [{:guardian, identity}])
        directory
        """)

      Beam.kill_with_guardian(first)
      second = start(data_dir)
      assert ProcScan.running?(stranger)
      assert is_list(Beam.run(second, "Snakepit.RunState.history()"))

      # One who may be the worker is not known to be gone, so nothing is forgotten.
      if unquote(kind) == :worker, do: assert(File.exists?(Path.join(directory, "ledger.dets")))
    end
  end
end
