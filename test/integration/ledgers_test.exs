defmodule Snakepit.LedgersTest do
  use ExUnit.Case, async: true

  alias Snakepit.Native
  alias Snakepit.Ledger.{DeadRun, History}
  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag timeout: 120_000

  # What earlier versions have left: see the README there.
  @fixtures Path.expand("../fixtures/ledgers", __DIR__)
  @layouts for name <- File.ls!(@fixtures), name =~ ~r/\Alayout-/, do: name

  # Git keeps no modes.
  defp copy(layout) do
    directory = Beam.temporary_directory()
    {_output, 0} = System.cmd("cp", ["-r", "#{@fixtures}/#{layout}/.", directory])
    {_output, 0} = System.cmd("chmod", ["-R", "u=rwX,go=", directory])
    directory
  end

  defp closed?(directory), do: File.exists?(Path.join(directory, "history"))

  defp open_runs(data_dir) do
    for id <- Beam.run_ids(data_dir),
        directory = Path.join(data_dir, id),
        not closed?(directory) do
      {:ok, lock} = Native.lock_take(Path.join(directory, "lock"))
      run = DeadRun.read(id, directory, lock)
      Native.lock_release(lock)
      {run, Native.obituary_read(directory)}
    end
  end

  defp contents(data_dir) do
    for path <- Path.wildcard("#{data_dir}/*/*"),
        into: %{},
        do: {path, {File.read!(path), File.stat!(path).mode}}
  end

  for layout <- @layouts do
    test "all that #{layout} holds is read, and nothing of it counts as damaged" do
      data_dir = copy(unquote(layout))
      assert [_, _] = runs = open_runs(data_dir)

      for {run, _obituary} <- runs do
        assert %{bad: 0, ignored: 0} = run

        assert Enum.sort(for worker <- run.workers, do: worker.worker_id) ==
                 ~w(daemons late plain stubborn)

        assert %{state: :running, node: "nonode@nohost"} = run.record
        assert [_adopted] = run.adopted
        # Each of them says of whom it is, in a place that is none of these.
        identities = [run.record.beam, run.guardian | DeadRun.identities(run)]
        assert length(Enum.uniq(identities)) == 7

        for identity <- identities,
            do: assert({:ok, :other_boot} = Native.identity_scope(identity))
      end

      assert [obituary] = for({_run, obituary} <- runs, obituary, do: obituary)
      assert %{survivors: []} = obituary
      assert [%{worker_id: "stubborn"}] = Enum.filter(obituary.processes, & &1.killed)

      assert Enum.sort(for process <- obituary.processes, do: process.worker_id) ==
               ~w(daemons daemons late plain stubborn)

      assert [%{terminated_by: :clean_shutdown, clean_shutdown: true}] = History.list(data_dir)
    end

    test "a start with #{layout} shows its history, keeps what is of another machine, and ends nobody" do
      bystanders = Family.bystanders()
      data_dir = copy(unquote(layout))
      before = contents(data_dir)
      [{%{record: %{instance: instance}}, _} | _] = runs = open_runs(data_dir)
      ids = for {run, _obituary} <- runs, do: run.id

      beam = Beam.start(data_dir: data_dir, instance: instance)
      assert [%{terminated_by: :clean_shutdown}] = Beam.run(beam, "Snakepit.RunState.history()")
      :ok = Beam.run(beam, "Application.stop(:snakepit)")
      assert Map.take(contents(data_dir), Map.keys(before)) == before

      # Nobody has heard of that machine for longer than is waited for.
      long_ago = System.os_time(:second) - 30 * 86_400

      for id <- ids,
          path <- [Path.join(data_dir, id) | Path.wildcard("#{data_dir}/#{id}/*")],
          do: File.touch!(path, long_ago)

      {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
      history = Beam.run(beam, "Snakepit.RunState.history()")

      for id <- ids do
        assert %{terminated_by: :elsewhere, state: :running, found: 0, killed: 0} =
                 Enum.find(history, &(&1.run_id == id))
      end

      for id <- ids, do: assert(closed_files(Path.join(data_dir, id)) == ~w(history lock))
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  # One that has ended by its guardian keeps what that has said.
  defp closed_files(directory), do: Enum.sort(File.ls!(directory) -- ["obituary"])
end
