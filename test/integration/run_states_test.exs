defmodule Snakepit.RunStatesTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  @history "Snakepit.RunState.history()"
  # As long as it takes: all but one of these families end when they are asked.
  @config [watchdog: [grace_period_ms: 20_000], graceful_shutdown_timeout_ms: 20_000]

  # A BEAM that ends at a chosen call of the file system.
  defp launch(data_dir, dies_at, options \\ []) do
    config = [data_dir: data_dir] ++ @config
    env = [Shim.variable("dies_at"), {"DIES_AT", dies_at}]
    Beam.launch(config, [env: env] ++ options)
  end

  defp start(data_dir), do: Beam.start([data_dir: data_dir] ++ @config)

  defp runs(data_dir), do: Beam.run_ids(data_dir)
  defp files(data_dir, run_id), do: Enum.sort(File.ls!(Path.join(data_dir, run_id)))

  # Nothing but the history of it is left, and the guardian's log if it had something to say.
  defp assert_closed(data_dir, run_id),
    do: assert(files(data_dir, run_id) -- ["guardian.log", "obituary"] == ["history", "lock"])

  defp only_run(data_dir) do
    assert [run_id] = runs(data_dir)
    run_id
  end

  # What a start makes of the one run that is there: it closes it, is fine itself, and in the end both
  # are history, in this order. Returns the record of the first.
  defp assert_next_start(data_dir, expected) do
    crashed = only_run(data_dir)
    beam = start(data_dir)
    run_id = Beam.run(beam, "Snakepit.run_id()")
    assert Beam.run(beam, "Snakepit.RunState.current()") == :running
    assert [%{run_id: ^crashed} = record] = Beam.run(beam, @history)
    assert Map.take(record, Map.keys(expected)) == expected
    # Not when it was closed, which is later than the start.
    {:ok, %{started_at: next}} = Beam.call(beam, Snakepit.RunState, :fetch, [run_id])
    assert record.started_at <= record.ended_at and record.ended_at < next
    assert_closed(data_dir, crashed)
    assert {:ok, ^record} = Beam.run(beam, "Snakepit.RunState.fetch(#{inspect(crashed)})")
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    assert_closed(data_dir, run_id)

    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    assert [%{run_id: ^run_id} = clean, %{run_id: ^crashed}] = Beam.run(beam, @history)
    assert %{state: :terminated, terminated_by: :clean_shutdown, clean_shutdown: true} = clean
    assert %{found: 0, killed: 0, gone: 0} = clean
    record
  end

  test "first run, second run, clean stop: each is history to the next" do
    data_dir = Path.join(Beam.temporary_directory(), "made/by/it")
    first = start(data_dir)
    first_id = only_run(data_dir)
    assert Beam.run(first, "Snakepit.run_id()") == first_id
    assert Beam.run(first, "Snakepit.RunState.current()") == :running
    assert Beam.run(first, @history) == []

    assert {:ok, %{state: :running, run_id: ^first_id}} =
             Beam.run(first, "Snakepit.RunState.fetch(#{inspect(first_id)})")

    assert {:error, %{reason: :not_found}} =
             Beam.run(first, ~s|Snakepit.RunState.fetch("zzzzzzz")|)

    # Nobody else may look into it.
    assert Bitwise.band(File.stat!(data_dir).mode, 0o777) == 0o700
    assert Bitwise.band(File.stat!(Path.join(data_dir, first_id)).mode, 0o777) == 0o700

    family = Family.start(first)
    Beam.tell(first, "System.stop(0)")
    Beam.await_end(first)
    assert Family.members(family) == []
    assert_closed(data_dir, first_id)

    second = start(data_dir)
    assert [record] = Beam.run(second, @history)
    assert %{run_id: ^first_id, state: :terminated, terminated_by: :clean_shutdown} = record
    assert record.beam_pid == first.os_pid
    assert record.started_at <= record.ended_at
    # All of the family ended when asked, or with who did.
    assert %{killed: 0, clean_shutdown: true, found: found, gone: found} = record
    assert found in 1..5
    assert Beam.run(second, "Snakepit.RunState.history(0)") == []
  end

  test "a run whose BEAM was killed has ended when the guardian noticed that" do
    data_dir = Beam.temporary_directory()
    beam = start(data_dir)
    guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
    killed = System.os_time(:millisecond)
    Beam.kill(beam)
    eventually(fn -> not ProcScan.running?(guardian) end)
    gone = System.os_time(:millisecond)
    assert %{ended_at: ended_at} = assert_next_start(data_dir, %{terminated_by: :guardian})
    assert ended_at in killed..gone
  end

  test "a run whose BEAM and guardian were killed has ended when it last wrote something" do
    data_dir = Beam.temporary_directory()
    beam = start(data_dir)
    Beam.kill_with_guardian(beam)
    assert_next_start(data_dir, %{terminated_by: :cleanup, clean_shutdown: false})
  end

  test "between the directory and its lock: nothing is left of it" do
    data_dir = Beam.temporary_directory()
    # The first directory that it makes.
    Beam.await_end(launch(data_dir, "mkdir * 1 after"))
    assert files(data_dir, only_run(data_dir)) == []
    beam = start(data_dir)
    assert Beam.run(beam, @history) == []
    assert Beam.run(beam, "Snakepit.run_id()") == only_run(data_dir)
  end

  # Each state is written once, in order. Only the last of these is synced, before anything is started, and
  # while the guardian is: that may have noticed the death.
  for {dies_at, state, by} <- [
        {"journal initializing 1 after", :initializing, [:cleanup]},
        {"journal cleaning_stale 1 after", :cleaning_stale, [:cleanup]},
        {"journal running 1 after", :running, [:cleanup, :guardian]},
        {"fdatasync /journal 1 before", :running, [:cleanup, :guardian]},
        {"fdatasync /journal 1 after", :running, [:cleanup, :guardian]}
      ] do
    test "killed when it has become #{state}: #{dies_at}" do
      data_dir = Beam.temporary_directory()
      Beam.await_end(launch(data_dir, unquote(dies_at)))
      expected = %{state: unquote(state), found: 0, clean_shutdown: false}
      assert assert_next_start(data_dir, expected).terminated_by in unquote(by)
    end
  end

  # With a family that is still there when it has become :shutting_down.
  for {name, dies_at, expected} <- [
        {"when it has become :shutting_down", "journal shutting_down 1 after",
         %{
           state: :shutting_down,
           terminated_by: :guardian,
           killed: 0,
           clean_shutdown: false
         }},
        {"when it has become :terminated", "journal terminated 1 after",
         %{state: :terminated, terminated_by: :clean_shutdown, found: 0, clean_shutdown: true}},
        {"before its history is in place", "rename /history 1 before",
         %{state: :terminated, terminated_by: :clean_shutdown, found: 0, clean_shutdown: true}},
        {"when its history is in place, and all its files are still there",
         "rename /history 1 after",
         %{state: :terminated, terminated_by: :clean_shutdown, killed: 0}},
        {"when the first of its files is gone", "unlink /journal 1 after",
         %{state: :terminated, terminated_by: :clean_shutdown, killed: 0}},
        {"before the table is removed", "unlink /ledger.dets 1 before",
         %{state: :terminated, terminated_by: :clean_shutdown, killed: 0}}
      ] do
    test "killed at its stop, #{name}" do
      data_dir = Beam.temporary_directory()
      beam = data_dir |> launch(unquote(dies_at)) |> Beam.await_start()
      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      family = Family.start(beam)
      Beam.tell(beam, "Application.stop(:snakepit)")
      Beam.await_end(beam)
      eventually(fn -> not ProcScan.running?(guardian) end)
      assert Family.members(family) == []
      assert_next_start(data_dir, unquote(Macro.escape(expected)))
    end
  end

  # The dead run has orphans, and the one that reaps it dies at it, but has left word of what it had ended. The third
  # finds both.
  for {name, dies_at, expected} <- [
        {"before it has closed what it reaped", "rename /history 1 before",
         %{found: 4, killed: 0}},
        {"when it has closed what it reaped", "rename /history 1 after", %{found: 4, killed: 0}},
        {"while it removes the files", "unlink /ledger.dets 1 before", %{found: 4, killed: 0}}
      ] do
    test "killed while it reaps another, #{name}" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      first = start(data_dir)
      first_id = only_run(data_dir)
      family = Family.start(first)
      Beam.kill_with_guardian(first)
      # The kernel took the shell with the guardian.
      eventually(fn -> length(Family.members(family)) == 4 end)

      Beam.await_end(launch(data_dir, unquote(dies_at)))
      assert [second_id] = runs(data_dir) -- [first_id]
      third = start(data_dir)
      assert Family.members(family) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)

      history = Beam.run(third, @history)
      assert %{run_id: ^first_id} = first_record = Enum.find(history, &(&1.run_id == first_id))
      assert first_record.terminated_by == :cleanup
      assert Map.take(first_record, [:found, :killed]) == unquote(Macro.escape(expected))

      assert %{state: :cleaning_stale, terminated_by: :cleanup, found: 0} =
               Enum.find(history, &(&1.run_id == second_id))

      for id <- [first_id, second_id], do: assert_closed(data_dir, id)
    end
  end

  test "killed in the midst of the grace period of what it reaps" do
    data_dir = Beam.temporary_directory()
    first = Beam.start(data_dir: data_dir)
    first_id = only_run(data_dir)
    token = Family.token()
    # Ignored by the daemon and what it starts, and by nobody else.
    script =
      "(env -i setsid sh -c 'trap \"\" TERM; sleep #{token}' &) ; sleep #{token} & sleep #{token}"

    {:ok, _} =
      Beam.run(
        first,
        "with {:ok, child} <- Snakepit.Test.Workers.start(\"w\", [\"sh\", \"-c\", #{inspect(script)}]), do: {:ok, child.os_pid}"
      )

    eventually(fn -> length(Family.members(token)) == 3 end)
    Beam.kill_with_guardian(first)

    # Ten minutes of grace: it can only be in the midst of it.
    second = Beam.launch(data_dir: data_dir, graceful_shutdown_timeout_ms: 600_000)
    eventually(fn -> length(Family.members(token)) == 1 end, 20_000)
    Beam.kill(second)
    Beam.await_end(second)

    third = Beam.start(data_dir: data_dir, graceful_shutdown_timeout_ms: 300)
    assert Family.members(token) == []
    history = Beam.run(third, @history)
    assert length(history) == 2
    # The shell that ignored it, and its child.
    assert %{terminated_by: :cleanup, found: 2, killed: 2, gone: 2} =
             Enum.find(history, &(&1.run_id == first_id))
  end

  test "history is pruned to what is to be kept, the oldest first" do
    data_dir = Beam.temporary_directory()
    beam = Beam.start(data_dir: data_dir, history: [keep: 3])

    ids =
      for _ <- 1..5 do
        Beam.run(beam, """
        id = Snakepit.run_id()
        :ok = Application.stop(:snakepit)
        {:ok, _} = Application.ensure_all_started(:snakepit)
        id
        """)
      end

    history = Beam.run(beam, @history)
    assert Enum.map(history, & &1.run_id) == ids |> Enum.reverse() |> Enum.take(3)
    assert length(runs(data_dir)) == 4
    # A damaged one is left out, and no reason not to start.
    [newest | _] = history
    File.write!(Path.join([data_dir, newest.run_id, "history"]), "garbage")
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    assert length(Beam.run(beam, @history)) == 3
  end
end
