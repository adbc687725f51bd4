defmodule Snakepit.LostLedgerTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  @instance "Snakepit.Run.current!().instance"

  # The members of a family whose BEAM and guardian were killed, and whose run has no directory any more. The
  # one that scrubbed its environment is nobody's then.
  defp orphans(data_dir) do
    beam = Beam.start(data_dir: data_dir)
    run_id = Beam.run(beam, "Snakepit.run_id()")
    family = Family.start(beam)
    Beam.kill_with_guardian(beam)
    marked = fn -> Enum.filter(Family.members(family), &marked?(&1, run_id)) end
    # The kernel took the shell with the guardian.
    eventually(fn -> length(Family.members(family)) == 4 end)
    assert [_, _ | _] = orphans = marked.()
    File.rm_rf!(Path.join(data_dir, run_id))

    on_exit(fn ->
      for os_pid <- Family.members(family), do: System.cmd("kill", ["-KILL", "#{os_pid}"])
    end)

    orphans
  end

  defp marked?(os_pid, run_id), do: File.read!("/proc/#{os_pid}/environ") =~ "RUN_ID=#{run_id}"

  defp gone?(os_pids), do: not Enum.any?(os_pids, &ProcScan.running?/1)

  test "what carries the marks of a run is ended by the next start, if there is no ledger at all" do
    data_dir = Beam.temporary_directory()
    orphans = orphans(data_dir)
    assert File.ls!(data_dir) == ["instance"]
    Beam.start(data_dir: data_dir, graceful_shutdown_timeout_ms: 300)
    assert gone?(orphans)
  end

  test "what carries the marks of a run whose ledger is lost is ended soon after the next start" do
    bystanders = Family.bystanders()
    data_dir = Beam.temporary_directory()
    :ok = Beam.run(Beam.start(data_dir: data_dir), "Application.stop(:snakepit)")
    orphans = orphans(data_dir)
    other = Beam.start()
    assert Beam.run(other, "Snakepit.Auditor.audit().orphans") == 0
    assert Enum.all?(orphans, &ProcScan.running?/1), "those of another instance"

    Beam.start(data_dir: data_dir, graceful_shutdown_timeout_ms: 300)
    eventually(fn -> gone?(orphans) end)
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  test "a BEAM that starts again and again looks for them later, and does not forget it" do
    data_dir = Beam.temporary_directory()
    beam = Beam.start(data_dir: data_dir, graceful_shutdown_timeout_ms: 300)
    # By then it has looked.
    assert Beam.run(beam, "Snakepit.Auditor.audit().orphans") == 0
    orphans = orphans(data_dir)

    # As if that was a while ago, and not as long as has to lie in between: most of it is left to see that
    # nothing has happened.
    Beam.run(beam, """
    key = {Snakepit.Auditor, #{@instance}}
    true = is_integer(:persistent_term.get(key))
    Application.stop(:snakepit)
    :persistent_term.put(key, System.monotonic_time(:millisecond) - 2_000)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    Snakepit.Auditor.audit().orphans
    """)

    assert Enum.all?(orphans, &ProcScan.running?/1)
    eventually(fn -> gone?(orphans) end, 30_000)
  end
end
