defmodule Snakepit.LegacyLedgerTest do
  use ExUnit.Case, async: true

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
    names = File.ls!(data_dir) -- ["instance", Beam.run(beam, "Snakepit.run_id()")]

    assert [
             "process_registry_damaged.dets.retired-" <> _,
             "process_registry_nonode_nohost.dets.retired-" <> _
           ] = Enum.sort(names)

    again = worker(run_id)
    Beam.start(data_dir: data_dir)
    assert ProcScan.running?(again)
  end

  # The node of another name is no atom in the BEAM that reads; the others are not made either.
  test "entries of a node of another name are read, and atoms that nobody knows are not made" do
    data_dir = Beam.temporary_directory()
    run_id = Snakepit.RunID.generate()
    [orphan, bystander] = for _ <- 1..2, do: worker(run_id)
    unknown = for _ <- 1..50, do: "foreign_#{System.unique_integer([:positive])}"

    write(Path.join(data_dir, "process_registry_other.dets"), [
      {"one", entry(orphan, beam_run_id: run_id, elixir_pid: pid_of("other@elsewhere"))},
      {"two", entry(bystander, Map.new(unknown, &{String.to_atom(&1), 1}) |> Map.to_list())}
    ])

    beam = Beam.start(data_dir: data_dir)
    refute ProcScan.running?(orphan)
    assert ProcScan.running?(bystander)

    known? = "fn name -> try do String.to_existing_atom(name) rescue ArgumentError -> nil end end"
    assert Enum.uniq(Beam.run(beam, "Enum.map(#{inspect(unknown)}, #{known?})")) == [nil]
  end

  defp pid_of(node) do
    :erlang.binary_to_term(
      <<131, 88, 119, byte_size(node), node::binary, 0, 0, 0, 99>> <> <<0::64>>
    )
  end

  @tag :root
  test "ledgers that others can have written are set aside unread, and so are endless ones" do
    data_dir = Beam.temporary_directory()
    run_id = Snakepit.RunID.generate()
    orphans = for _ <- 1..3, do: worker(run_id)

    paths =
      for name <- ~w(group user link), do: Path.join(data_dir, "process_registry_#{name}.dets")

    [group, user, link] = paths
    elsewhere = Path.join(Beam.temporary_directory(), "ledger")

    for {path, orphan} <- Enum.zip([group, user, elsewhere], orphans),
        do: write(path, [{"one", entry(orphan, beam_run_id: run_id)}])

    File.chmod!(group, 0o664)
    File.chown!(user, 65_534)
    File.ln_s!(elsewhere, link)
    endless = Path.join(data_dir, "process_registry_endless.dets")
    {_output, 0} = System.cmd("truncate", ["-s", "1T", endless])

    Beam.start(data_dir: data_dir)
    assert Enum.all?(orphans, &ProcScan.running?/1)
    left = for name <- File.ls!(data_dir), name =~ "process_registry", do: name
    assert length(left) == 4
    assert Enum.all?(left, &(&1 =~ ".dets.refused-"))
  end
end
