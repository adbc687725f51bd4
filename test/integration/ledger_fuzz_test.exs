defmodule Snakepit.LedgerFuzzTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Bytes, Family, Grave, ProcScan, Program}

  @moduletag :long

  # All five hundred with SNAKEPIT_LONG=1, which takes as many times longer.
  @all? System.get_env("SNAKEPIT_LONG") != nil
  @corruptions if @all?, do: 500, else: 60
  @moduletag timeout: if(@all?, do: 900_000, else: 120_000)
  @files ["journal", "ledger.dets", "adopted"]

  # A BEAM that is dead, with what it was known by.
  defp dead_beam(data_dir) do
    beam = Beam.start(data_dir: data_dir)
    token = Family.token()
    Beam.call(beam, Family, :launch, [token])

    [member | _] =
      eventually(fn -> Enum.find_value([Family.members(token)], &(length(&1) == 4 and &1)) end)

    variables = Enum.find_value(Family.members(token), &owner_of/1)
    assert variables, "no member of #{member}'s family has its marks"
    run_id = Beam.run(beam, "Snakepit.run_id()")
    # The judge's idea of a lineage is the library's.
    [limit] =
      Regex.run(~r/Max file locks +(\d+)/, File.read!("/proc/#{member}/limits"),
        capture: :all_but_first
      )

    assert div(String.to_integer(limit), 0x4000000) == div(Grave.lineage(run_id), 0x4000000)
    identity = Beam.run(beam, "Snakepit.Run.current!().record.beam")
    Beam.kill(beam)
    Beam.await_end(beam)
    Map.put(variables, :identity, identity)
  end

  defp owner_of(os_pid) do
    with {:ok, environment} <- File.read("/proc/#{os_pid}/environ") do
      variables =
        for pair <- String.split(environment, <<0>>),
            [name, value] <- [String.split(pair, "=", parts: 2)],
            into: %{},
            do: {name, value}

      with %{"SNAKEPIT_OWNER" => owner, "SNAKEPIT_INSTANCE" => instance} <- variables,
           do: %{owner: owner, instance: instance},
           else: (_ -> nil)
    else
      _gone -> nil
    end
  end

  # Three with the marks of the run, and two that have nothing but their lineage.
  defp start_orphans(run_id, dead) do
    token = Family.token()
    sleep = "setsid sleep #{token} </dev/null >/dev/null 2>&1 &"

    marks =
      "env SNAKEPIT_RUN_ID=#{run_id} SNAKEPIT_WORKER_ID=w SNAKEPIT_INSTANCE=#{dead.instance} SNAKEPIT_OWNER=#{dead.owner}"

    lineage = "prlimit --locks=#{Grave.lineage(run_id)}: env -i"
    script = Enum.map_join([marks, marks, marks, lineage, lineage], "\n", &"#{&1} #{sleep}")
    {_output, 0} = System.cmd("sh", ["-c", script])

    os_pids =
      eventually(fn ->
        Enum.find(
          [Family.members(token)],
          &(length(&1) == 5 and Enum.all?(&1, fn pid -> ProcScan.name(pid) == "sleep" end))
        )
      end)

    # If this fails, nobody else ends them.
    on_exit(fn ->
      for os_pid <- Family.members(token), do: System.cmd("kill", ["-KILL", "#{os_pid}"])
    end)

    {token, os_pids}
  end

  test "whatever is damaged: the orphans go, nobody else does, and the start goes on" do
    seed = ExUnit.configuration()[:seed]
    :rand.seed(:exsss, {seed, 5, 0})
    data_dir = Beam.temporary_directory()
    dead = dead_beam(data_dir)
    lab = Beam.start(data_dir: data_dir, graceful_shutdown_timeout_ms: 100, history: [keep: 3])

    # One that nobody knows of; one whose pid the ledger names, with another's identity; and one of the
    # same run id in its arguments, which anybody may have typed.
    # For longer than all rounds take on the slowest machine.
    [stranger, recycled] = for _ <- 1..2, do: Program.start("sleep", ["86400"])

    for round <- 1..@corruptions do
      run_id = Beam.run(lab, "Snakepit.Test.Grave.run_id()")

      # Its auditor may have listed the runs before this one: it would take these orphans for those of a run without a
      # ledger.
      :ok = Beam.run(lab, ":sys.suspend(Snakepit.Auditor)")
      namesake = Program.start("sh", ["-c", "read _", "sh", "--run-id", run_id])
      bystanders = [stranger, recycled, namesake]
      {token, orphans} = start_orphans(run_id, dead)

      directory =
        Beam.run(lab, """
        import Snakepit.Test.Grave
        [one, two, three, four, five] = #{inspect(orphans)}
        recycled = {"recycled", #{recycled}, #{inspect(dead.identity, limit: :infinity)}}
        workers = [{"w1", one, identity(one)}, recycled, {"w2", two, identity(two)}, {"w4", four, identity(four)}]
        dig(#{inspect(run_id)}, #{inspect(dead.identity, limit: :infinity)}, workers, [three, five])
        """)

      :ok = Beam.run(lab, ":sys.resume(Snakepit.Auditor)")

      corruption = corrupt(lab, directory, run_id, :rand.uniform(14))
      context = "seed #{seed}, round #{round}: #{inspect(corruption)}"

      # By a start of the whole application now and then; it is the same pass.
      code =
        if rem(round, 20) == 0,
          do:
            "Application.stop(:snakepit); {:ok, _} = Application.ensure_all_started(:snakepit); :ok",
          else: "Snakepit.Cleanup.Reaper.reap(Snakepit.Run.current!(), Snakepit.Config.fetch!())"

      answer =
        Beam.run(
          lab,
          "try do #{code} catch kind, reason -> {kind, Exception.format(kind, reason, __STACKTRACE__)} end"
        )

      assert answer == :ok, "#{context}: #{inspect(answer)}"
      assert Family.members(token) == [], context
      for os_pid <- bystanders, do: assert(ProcScan.running?(os_pid), context)
      # Closed, or removed because nothing of it was left to tell.
      assert not File.exists?(directory) or File.exists?(Path.join(directory, "history")), context
    end
  end

  # Bytes that have changed, of one file or of all.
  defp corrupt(_lab, directory, _run_id, kind) when kind <= 9 do
    files =
      Enum.filter(@files, &(File.exists?(Path.join(directory, &1)) and :rand.uniform(2) == 1))

    files = if files == [], do: [Enum.random(@files)], else: files

    for file <- files do
      path = Path.join(directory, file)
      bytes = File.read!(path)
      {what, damaged} = damage(kind, bytes)
      File.write!(path, damaged)
      {file, what}
    end
  end

  defp corrupt(_lab, directory, _run_id, 10) do
    file = Enum.random(@files)
    File.rm!(Path.join(directory, file))
    {file, :removed}
  end

  defp corrupt(_lab, directory, _run_id, 11) do
    file = Enum.random(@files)
    File.rm!(Path.join(directory, file))
    File.mkdir!(Path.join(directory, file))
    {file, :a_directory}
  end

  # Whole entries, of which we never wrote one.
  defp corrupt(lab, directory, run_id, 12) do
    terms = Enum.take_random(foreign_terms(run_id), 4)

    Beam.run(
      lab,
      "Snakepit.Test.Grave.append(#{inspect(directory)}, #{inspect(terms, limit: :infinity)})"
    )

    {"journal", terms}
  end

  defp corrupt(lab, directory, run_id, 13) do
    objects =
      for {key, value} <- Enum.take_random(foreign_terms(run_id), 4),
          do: {Enum.random([:current_run, :guardian, "w1", key]), value}

    Beam.run(
      lab,
      "Snakepit.Test.Grave.insert(#{inspect(directory)}, #{inspect(objects, limit: :infinity)})"
    )

    {"ledger.dets", objects}
  end

  defp corrupt(_lab, directory, _run_id, 14) do
    for file <- @files, do: File.write!(Path.join(directory, file), random(:rand.uniform(3_000)))
    :all_garbage
  end

  defp foreign_terms(run_id) do
    [
      {:worker, 42},
      {:worker, %{worker_id: "w9", os_pid: 1}},
      {:worker, %{worker_id: :none, run_id: run_id, identity: <<1, 2, 3>>}},
      {:guardian, :nobody},
      {:guardian, <<0>>},
      {:run, []},
      {:run, %{}},
      {:run, %{run_id: 1, beam: 2}},
      {:run, %{run_id: run_id, beam: <<1>>, state: "x", beam_pid: :none}},
      {:gone, %{}},
      {:gone, "w1"},
      {"unknown", {:a, %{b: ~c"c"}}},
      {1, 2}
    ]
  end

  defp damage(kind, bytes) when kind <= 3 do
    flips =
      for _ <- 1..:rand.uniform(8), do: {:rand.uniform(byte_size(bytes)) - 1, :rand.uniform(255)}

    {{:flipped, flips}, Enum.reduce(flips, bytes, &flip/2)}
  end

  defp damage(kind, bytes) when kind <= 5 do
    length = :rand.uniform(byte_size(bytes)) - 1
    {{:truncated, length}, binary_part(bytes, 0, length)}
  end

  defp damage(kind, bytes) when kind <= 7 do
    start = :rand.uniform(byte_size(bytes)) - 1
    length = min(:rand.uniform(512), byte_size(bytes) - start)
    {{:overwritten, start, length}, Bytes.overwrite(bytes, start, random(length))}
  end

  defp damage(8, bytes), do: {:appended, bytes <> random(:rand.uniform(500))}
  defp damage(9, _bytes), do: {:emptied, ""}

  defp flip({at, mask}, bytes), do: Bytes.flip(bytes, at, mask)

  # From the seed, unlike the bytes that the OS gives.
  defp random(length), do: for(_ <- 1..length//1, into: "", do: <<:rand.uniform(256) - 1>>)
end
