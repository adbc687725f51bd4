defmodule Snakepit.CommandsTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, GuardianCommand, ProcScan, Program, Tmux}

  @moduletag :long

  setup do
    data_dir = Beam.temporary_directory()
    bystanders = Family.bystanders()
    on_exit(fn -> assert Enum.all?(bystanders, &ProcScan.running?/1) end)
    [data_dir: data_dir, bystanders: bystanders]
  end

  defp run(command, data_dir, options \\ []),
    do: GuardianCommand.run([command, "--data-dir", data_dir | options])

  defp json(command, data_dir, options \\ []),
    do: GuardianCommand.json([command, "--data-dir", data_dir | options])

  defp start(data_dir, config \\ []) do
    beam = Beam.start([data_dir: data_dir] ++ config)
    {beam, Beam.run(beam, "Snakepit.run_id()")}
  end

  defp the_run(answer) do
    %{"data_dirs" => [%{"runs" => [run]}]} = answer
    run
  end

  # The lock goes with the last thread of the BEAM, which may take a moment longer than its process.
  defp kill_with_guardian(beam) do
    Beam.kill_with_guardian(beam)

    eventually(fn ->
      {%{"spared" => spared}, _status} = json("reap", beam.data_dir)
      not Enum.any?(spared, &(&1["reason"] =~ "holds the lock"))
    end)
  end

  # Starts a family, and kills its BEAM and guardian. The kernel kills direct children; the other four live on.
  defp crash(data_dir, config \\ []) do
    {beam, run_id} = start(data_dir, config)
    token = Family.start(beam)
    stranger = stranger(token)
    kill_with_guardian(beam)
    eventually(fn -> length(Family.members(token)) == 4 end)
    {run_id, token, stranger}
  end

  # A look-alike of another instance: the same markers of the same BEAM, and it is nobody's business.
  defp stranger(token) do
    markers = token |> Family.members() |> Enum.map(&markers/1) |> Enum.find(&(&1 != []))
    other = ~c"0-00000000000000000000000000000000"
    env = List.keyreplace(markers, ~c"SNAKEPIT_INSTANCE", 0, {~c"SNAKEPIT_INSTANCE", other})
    Program.start("sleep", [Family.token()], env: env)
  end

  defp markers(os_pid) do
    text = File.read!("/proc/#{os_pid}/environ")

    found =
      for [_, name, value] <- Regex.scan(~r/(SNAKEPIT_\w+)=([^\0]*)/, text), do: {name, value}

    for {name, value} <- found, do: {String.to_charlist(name), String.to_charlist(value)}
  end

  test "a living run is shown with its workers, and reap leaves it alone", %{data_dir: data_dir} do
    {beam, run_id} = start(data_dir)
    token = Family.start(beam, "family one")
    there = Enum.sort(Family.members(token))
    leader = Beam.run(beam, "hd(Snakepit.workers()).os_pid")

    {answer, 0} = json("ps", data_dir)
    run = the_run(answer)
    assert %{"run_id" => ^run_id, "state" => "running", "recorded_state" => "running"} = run
    assert run["beam_pid"] == beam.os_pid
    assert run["guardian_pid"] == Beam.run(beam, "Snakepit.Guardian.os_pid()")
    assert [%{"worker_id" => "family one", "processes" => 5} = worker] = run["workers"]
    assert worker["rss_bytes"] > 0 and worker["uptime_ms"] >= 0
    {table, 0} = run("ps", data_dir)
    assert table =~ ~r/#{run_id}  running  family one +#{worker["os_pid"]} +5 /

    {answer, 0} = json("tree", data_dir)
    processes = the_run(answer)["processes"]
    assert Enum.sort(for one <- processes, do: one["os_pid"]) == Enum.sort([leader | there])
    assert Enum.all?(processes, &(&1["worker_id"] == "family one"))
    {tree, 0} = run("tree", data_dir)
    for os_pid <- there, do: assert(tree =~ ~r/^ +#{os_pid} .*sleep #{token}/m)

    {answer, 0} = json("reap", data_dir, ["--yes"])
    assert [%{"run_id" => ^run_id, "reason" => reason}] = answer["spared"]
    assert reason =~ "holds the lock"
    assert answer["runs"] == []
    assert Enum.sort(Family.members(token)) == there
    assert ProcScan.running?(%{os_pid: beam.os_pid, start: beam.start})
  end

  test "BEAM and guardian killed at one instant: reap shows what is left, ends it when told to, and the next start has it in its history",
       %{data_dir: data_dir} do
    {run_id, token, stranger} = crash(data_dir)
    left = Enum.sort(Family.members(token))

    {answer, 1} = json("reap", data_dir)
    assert [%{"run_id" => ^run_id, "processes" => shown, "ambiguous" => []}] = answer["runs"]
    assert Enum.sort(for one <- shown, do: one["os_pid"]) == left
    assert Enum.all?(shown, &(&1["proof"] in ~w(recorded marked lineage descends)))
    assert Enum.all?(shown, &(&1["outcome"] == nil and "sleep" in &1["command"]))
    assert Enum.sort(Family.members(token)) == left

    {text, 1} = run("reap", data_dir)
    for os_pid <- left, do: assert(text =~ ~r/^  #{os_pid}  .*\(it .*\)|#{os_pid} .*\(its .*\)/m)
    assert text =~ "'reap --yes' ends these 4"

    {answer, 0} = json("reap", data_dir, ["--yes"])
    assert [%{"processes" => ended}] = answer["runs"]
    assert Enum.sort(for one <- ended, do: one["os_pid"]) == left
    assert Enum.all?(ended, &(&1["outcome"] == "stopped"))
    assert Family.members(token) == []
    assert ProcScan.running?(stranger)
    {"" <> text, 0} = run("reap", data_dir)
    assert text =~ "no process of a dead run"

    # The ledger stays open, for the next start.
    {answer, 0} = json("history", data_dir)
    assert %{"run_id" => ^run_id, "closed" => false, "found" => 4} = the_run(answer)

    {beam, _next} = start(data_dir)
    assert [%{run_id: ^run_id} = closed] = Beam.run(beam, "Snakepit.RunState.history()")
    assert %{terminated_by: :cleanup, found: 4, killed: 0, gone: 4, ambiguous: 0} = closed
    {answer, 0} = json("history", data_dir)
    assert %{"closed" => true, "processes" => processes} = the_run(answer)
    assert Enum.sort(for one <- processes, do: one["os_pid"]) == left
    assert ProcScan.running?(stranger)
  end

  test "what a start has reaped is in its history, process by process", %{data_dir: data_dir} do
    {run_id, token, _stranger} = crash(data_dir)
    left = Enum.sort(Family.members(token))
    start(data_dir)
    assert Family.members(token) == []
    {answer, 0} = json("history", data_dir)

    assert %{"run_id" => ^run_id, "terminated_by" => "cleanup", "found" => 4} =
             run = the_run(answer)

    assert Enum.sort(for one <- run["processes"], do: one["os_pid"]) == left
  end

  test "one that does not end when asked is killed", %{data_dir: data_dir} do
    {beam, _run_id} = start(data_dir)
    token = Family.token()
    # In a session of its own, so the kernel does not end it with its parent.
    script = "setsid sh -c 'trap \"\" TERM; exec sleep #{token}' & sleep #{token}"

    {:ok, _child} =
      Beam.call(beam, Snakepit.Test.Workers, :start, ["stubborn", ["sh", "-c", script]])

    eventually(fn -> length(Family.members(token)) >= 2 end)
    kill_with_guardian(beam)
    {answer, 0} = json("reap", data_dir, ["--yes", "--grace", "300"])
    assert [%{"processes" => ended}] = answer["runs"]
    assert Enum.any?(ended, &(&1["outcome"] == "killed"))
    assert Family.members(token) == []
  end

  test "after kill -9 of a BEAM the history has how each process ended, before and after the next start",
       %{data_dir: data_dir} do
    {beam, run_id} = start(data_dir)
    token = Family.start(beam)
    there = Enum.sort(Family.members(token))
    Beam.kill(beam)
    eventually(fn -> File.exists?(Path.join([data_dir, run_id, "obituary"])) end)
    assert Family.members(token) == []

    check = fn closed? ->
      {answer, 0} = json("history", data_dir)
      run = the_run(answer)
      assert %{"run_id" => ^run_id, "terminated_by" => "guardian", "closed" => ^closed?} = run
      ended = for one <- run["processes"], one["worker_id"] == "family", do: one["os_pid"]
      assert Enum.all?(there, &(&1 in ended))
      {text, 0} = run("history", data_dir)

      for os_pid <- there,
          do: assert(text =~ ~r/^  #{os_pid} \[family\] (ended when asked|killed)/m)
    end

    check.(false)
    start(data_dir)
    check.(true)
  end

  test "processes whose run's directory was deleted are found by their markers, and others' are not",
       %{data_dir: data_dir} do
    {run_id, token, stranger} = crash(data_dir)
    File.rm_rf!(Path.join(data_dir, run_id))
    {answer, 0} = json("ps", data_dir)
    assert %{"data_dirs" => [%{"runs" => [], "strays" => [_ | _] = strays}]} = answer
    assert Enum.all?(strays, &(&1 in Family.members(token)))

    {%{"strays" => shown}, 1} = json("reap", data_dir)
    assert Enum.sort(for one <- shown, do: one["os_pid"]) == Enum.sort(strays)
    {_answer, 0} = json("reap", data_dir, ["--yes"])
    # The daemon with an empty environment has nothing that says whose it is.
    eventually(fn -> length(Family.members(token)) == 1 end)
    assert ProcScan.running?(stranger)
    for os_pid <- Family.members(token), do: System.cmd("kill", ["-KILL", "#{os_pid}"])
  end

  @tag skip: Tmux.missing?()
  test "ps --watch shows what comes and goes in a terminal, in lines that fit", %{
    data_dir: data_dir
  } do
    {beam, run_id} = start(data_dir)
    terminal = Tmux.start(Beam.temporary_directory(), 24, 70)
    Tmux.line(terminal, "#{GuardianCommand.executable()} ps --watch=0.2 --data-dir #{data_dir}")
    Tmux.sees(terminal, "RUN ")
    Family.start(beam, "a family with a long name that is shortened")
    Tmux.sees(terminal, "#{run_id}  running  a fam")
    Tmux.sees(terminal, "UPTIME")
    Beam.kill(beam)
    Tmux.sees(terminal, ~r"(ending|dead) ")
  end

  test "a run of another instance is left alone, and named", %{data_dir: data_dir} do
    {run_id, token, stranger} = crash(data_dir, instance: "another")
    {answer, 0} = json("reap", data_dir, ["--yes"])
    assert [%{"run_id" => ^run_id, "reason" => reason}] = answer["spared"]
    assert reason =~ "--instance another"
    assert length(Family.members(token)) == 4
    {_answer, 0} = json("reap", data_dir, ["--yes", "--instance", "another"])
    assert Family.members(token) == []
    assert ProcScan.running?(stranger)
  end

  test "garbage in the data directory is no reason to fail, to kill, or to hide what is left",
       context do
    %{data_dir: data_dir} = context
    {run_id, token, _stranger} = crash(data_dir)
    :rand.seed(:exsss, {ExUnit.configuration()[:seed], 15, 1})
    names = ~w(journal journal.old ledger.dets adopted obituary)

    for number <- 1..20, name <- names do
      directory = Path.join(data_dir, "garbag#{rem(number, 10)}")
      File.mkdir_p!(directory)
      File.chmod!(directory, 0o700)
      whole = Path.join([data_dir, run_id, name])
      # Half of it is made of what was there: as damage is.
      bytes =
        if number > 10 and File.exists?(whole),
          do: damaged(File.read!(whole)),
          else: :rand.bytes(:rand.uniform(3_000))

      File.write!(Path.join(directory, name), bytes)
    end

    File.write!(Path.join([data_dir, "garbag1", "history"]), :rand.bytes(100))

    for command <- ~w(ps tree history doctor) do
      {_answer, status} = json(command, data_dir)
      assert status in [0, 1], command
    end

    {_answer, 1} = json("reap", data_dir)
    {_answer, 0} = json("reap", data_dir, ["--yes"])
    assert Family.members(token) == []
    assert Enum.all?(context.bystanders, &ProcScan.running?/1)
  end

  defp damaged(bytes) do
    position = :rand.uniform(byte_size(bytes) + 1) - 1
    {head, rest} = :erlang.split_binary(bytes, position)
    head <> :rand.bytes(4) <> binary_part(rest, 0, div(byte_size(rest), 2))
  end

  @tag :root
  test "who may not read the directory is told so", %{data_dir: data_dir} do
    {_beam, run_id} = start(data_dir)
    nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", GuardianCommand.executable()]
    program = Path.join(Beam.temporary_directory(), "snakepit_guardian")
    File.cp!(GuardianCommand.executable(), program)
    nobody = List.replace_at(nobody, -1, program)

    run = fn arguments ->
      System.cmd("setpriv", nobody ++ arguments, stderr_to_stdout: true)
    end

    # What is in it is another user's.
    {text, 0} = run.(["ps", "--data-dir", data_dir])
    assert text =~ "1 runs in #{data_dir} are not read" and text =~ run_id
    File.chmod!(data_dir, 0o700)

    for command <- ~w(ps tree history reap) do
      {text, 2} = run.([command, "--data-dir", data_dir])
      assert text =~ data_dir and text =~ "EACCES"
    end

    {text, 2} = run.(["doctor", "--data-dir", data_dir])
    assert text =~ "does not start here"
  end

  test "mix shows the same, and begins no run", %{data_dir: data_dir} do
    {beam, run_id} = start(data_dir)
    Family.start(beam)
    before = Beam.run_ids(Snakepit.CommandLine.data_dir())

    mix = fn arguments ->
      System.cmd("mix", arguments, env: [{"MIX_ENV", "test"}], stderr_to_stdout: true)
    end

    {text, 0} = mix.(["snakepit.ps", "--data-dir", data_dir])
    assert text =~ ~r/^#{run_id}  running  family/m
    # The configuration of this project names the directory of the BEAM that runs this test.
    {text, 0} = mix.(["snakepit.ps"])
    assert text =~ ~r/^#{Snakepit.run_id()}  running/m
    {text, 0} = mix.(["snakepit.tree", "--data-dir", data_dir])
    assert text =~ "run #{run_id}  running"
    {text, 0} = mix.(["snakepit.history", "--data-dir", data_dir])
    assert text =~ "no runs have ended"
    {text, 0} = mix.(["snakepit.reap", "--yes", "--data-dir", data_dir])
    assert text =~ "run #{run_id}  left alone"
    {text, _status} = mix.(["snakepit.doctor", "--data-dir", data_dir])
    assert text =~ "data directory  #{data_dir}"
    {text, 64} = mix.(["snakepit.ps", "--nonsense"])
    assert text =~ "there is no option '--nonsense' here"
    assert Beam.run_ids(data_dir) == [run_id]
    assert Beam.run_ids(Snakepit.CommandLine.data_dir()) == before
  end
end
