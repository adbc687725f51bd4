defmodule Snakepit.LegacyLedgerTest do
  use ExUnit.Case, async: false

  alias Snakepit.Test.{Beam, ProcScan, Program}

  @moduletag timeout: 120_000

  # As the earlier Snakepit left them: Python workers with the id of their run among the arguments.
  defp worker(run_id, flag \\ "--snakepit-run-id"),
    do: Program.start("sh", ["-c", "read _", "sh", flag, run_id])

  defp write(path, objects) do
    {:ok, table} = :dets.open_file(make_ref(), file: String.to_charlist(path), type: :set)
    :ok = :dets.insert(table, objects)
    :ok = :dets.close(table)
  end

  defp entry(os_pid, fields) do
    Enum.into(fields, %{
      status: :active,
      elixir_pid: self(),
      process_pid: os_pid,
      fingerprint: "x",
      registered_at: 0,
      pgid: os_pid,
      process_group?: true
    })
  end

  test "processes of the earlier ledger end if they carry its run id, and the ledger is set aside" do
    data_dir = Beam.temporary_directory()
    [run_id, other_id] = for _ <- 1..2, do: Snakepit.RunID.generate()
    orphans = for flag <- ["--snakepit-run-id", "--run-id"], do: worker(run_id, flag)
    [one, two] = orphans
    six_fields = worker(run_id)
    {beam, 0} = System.cmd("sh", ["-c", "echo $$"])

    # Pids that have become somebody else's, one of another run, and one whose BEAM still runs.
    stranger = Program.sleeper()
    of_another_run = worker(other_id)
    of_the_living = worker(run_id)
    namesake = worker(run_id)

    write(Path.join(data_dir, "process_registry_nonode_nohost.dets"), [
      {"one", entry(one, beam_run_id: run_id, beam_os_pid: String.to_integer(String.trim(beam)))},
      {"two", entry(two, run_id: run_id)},
      {"six", self(), six_fields, "fingerprint", run_id, 0},
      {"stranger", entry(stranger, beam_run_id: run_id)},
      {"another", entry(of_another_run, beam_run_id: run_id)},
      {"living",
       entry(of_the_living, beam_run_id: run_id, beam_os_pid: String.to_integer(System.pid()))},
      {"reserved", %{status: :reserved, reserved_at: 0, beam_run_id: run_id}},
      {"init", entry(1, beam_run_id: run_id)},
      {"nonsense", 1, 2},
      {"worse", entry("pid", beam_run_id: 7)}
    ])

    File.write!(
      Path.join(data_dir, "process_registry_damaged.dets"),
      :crypto.strong_rand_bytes(2_000)
    )

    beam = Beam.start(data_dir: data_dir)
    for os_pid <- orphans ++ [six_fields], do: refute(ProcScan.running?(os_pid))
    bystanders = [stranger, of_another_run, of_the_living, namesake]
    for os_pid <- bystanders, do: assert(ProcScan.running?(os_pid))

    # Read once: both are kept, under names that are not read again.
    names = File.ls!(data_dir) -- [Beam.run(beam, "Snakepit.run_id()")]

    assert [
             "process_registry_damaged.dets.retired-" <> _,
             "process_registry_nonode_nohost.dets.retired-" <> _
           ] = Enum.sort(names)

    again = worker(run_id)
    Beam.start(data_dir: data_dir)
    assert ProcScan.running?(again)
  end
end
