defmodule Snakepit.ShutdownTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, LogFile, ProcScan, Shutdowns, Workers}

  @moduletag :long
  @moduletag timeout: 120_000

  # Ignores SIGTERM, as does what it has started.
  defp stubborn(token), do: ["sh", "-c", "trap '' TERM; exec sleep #{token}"]

  defp start_all(beam, count, cmd) do
    ids = for number <- 1..count, do: "w#{number}"
    assert length(Beam.call(beam, Workers, :start_all, [ids, cmd])) == count
  end

  test "five hundred that ignore SIGTERM take one grace period, not five hundred" do
    bystanders = Family.bystanders()
    beam = Beam.start(cleanup_on_stop_timeout_ms: 1_000, watchdog: [grace_period_ms: 1_000])
    token = Family.token()
    start_all(beam, 500, stubborn(token))
    eventually(fn -> length(Family.members(token)) == 500 end, 30_000)

    {ms, log} = LogFile.during(beam, Shutdowns, :timed_stop, [])
    assert Family.members(token) == []

    # One of a second, and the time to find and kill five hundred on a machine that has other work.
    assert ms in 1_000..60_000
    assert log =~ "had to kill 500 processes"
    assert Enum.all?(bystanders, &ProcScan.running?/1)

    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    assert [run] = Beam.run(beam, "Snakepit.RunState.history()")
    assert %{terminated_by: :clean_shutdown, found: 500, killed: 500, gone: 500} = run
  end

  test "a stop starts nothing any more, and neither does one that is over" do
    beam = Beam.start(cleanup_on_stop_timeout_ms: 2_000)
    token = Family.token()
    # It keeps the stop waiting for two seconds, and long after that it would still be there.
    start_all(beam, 1, stubborn(token))
    eventually(fn -> length(Family.members(token)) == 1 end)

    :ok = Beam.call(beam, Shutdowns, :begin_stop)
    eventually(fn -> Beam.run(beam, "Snakepit.RunState.current()") == :shutting_down end)
    late = Family.token()

    assert Beam.call(beam, Shutdowns, :start_late, [["sleep", late]]) ==
             {:shutting_down, :shutting_down}

    assert Family.members(late) == []
    assert Beam.call(beam, Shutdowns, :await_stop) == :ok

    # At once, and not when it has given up waiting for one that does not come back: ten seconds later.
    {microseconds, message} = Beam.call(beam, Shutdowns, :start_too_late, [["sleep", late]])
    assert message =~ "Snakepit is not started"
    assert microseconds < 5_000_000
  end

  test "cleanup/0 ends everything and forgets it, and workers can be started again" do
    bystanders = Family.bystanders()
    beam = Beam.start()
    polite = Family.token()
    stubborn = Family.token()
    start_all(beam, 5, ["sh", "-c", Family.script(polite)])
    eventually(fn -> length(Family.members(polite)) == 20 end)

    {:ok, _child} = Beam.call(beam, Workers, :start, ["deaf", stubborn(stubborn)])
    eventually(fn -> length(Family.members(stubborn)) == 1 end)

    assert {:ok, %{stopped: stopped, killed: 1}} =
             Beam.run(beam, "Snakepit.cleanup(timeout: 300)")

    assert stopped > 0
    assert Family.members(polite) == []
    assert Family.members(stubborn) == []
    assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.list_all_workers()") == []
    assert Beam.run(beam, "Snakepit.Pool.PIDLedger.all()") == []
    assert Beam.run(beam, "Snakepit.cleanup()") == {:ok, %{stopped: 0, killed: 0}}
    assert Beam.run(beam, "Snakepit.workers()") == []

    start_all(beam, 1, ["sh", "-c", Family.script(polite)])
    eventually(fn -> length(Family.members(polite)) == 4 end)

    assert [%{id: "w1", state: :alive}] =
             Beam.run(
               beam,
               "for worker <- Snakepit.workers(), do: Map.take(worker, [:id, :state])"
             )

    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  for {what, call} <- [
        {"cleanup/1", {Snakepit, :cleanup, [[timeout: 300]]}},
        {"Application.stop/1", {Application, :stop, [:snakepit]}}
      ] do
    test "what #{what} ends is no error in the log" do
      beam = Beam.start(cleanup_on_stop_timeout_ms: 300)
      token = Family.token()

      polite = [cmd: ["sleep", token], stop_timeout: 300]
      monitors = Beam.call(beam, Shutdowns, :start, [2, polite])
      Beam.call(beam, Shutdowns, :start, [1, [cmd: stubborn(token)]])
      eventually(fn -> length(Family.members(token)) == 3 end)

      call = unquote(Macro.escape(call))
      {answer, log} = LogFile.during(beam, Shutdowns, :end_by, [call, monitors])
      assert answer == :ok or match?({:ok, %{killed: 1}}, answer)
      assert Family.members(token) == []
      refute log =~ "error"
      refute log =~ "was ended by"
    end
  end

  test "what ends by itself is an error in the log" do
    beam = Beam.start()

    {reason, log} = LogFile.during(beam, Shutdowns, :end_by_itself, [3])
    assert reason == {:exit_status, 3}
    assert log =~ "error: Snakepit worker"
    assert log =~ "ended with status 3"
  end

  describe "a script" do
    # As a user writes it: a file for `elixir`, with nothing around it.
    defp script(token, body, options \\ "[]") do
      data_dir = Beam.temporary_directory()

      code = """
      Application.put_env(:snakepit, :data_dir, #{inspect(data_dir)})
      Application.put_env(:snakepit, :watchdog, grace_period_ms: 500)

      result =
        Snakepit.run_as_script(fn ->
          {:ok, _} = Snakepit.Test.Workers.start("family", ["sh", "-c", #{inspect(Family.script(token))}])
          IO.puts("running")
          #{body}
        end, #{options})

      IO.puts("result \#{inspect(result)}")
      """

      path = Path.join(Beam.temporary_directory(), "script.exs")
      File.write!(path, code)
      {path, data_dir}
    end

    defp elixir(path) do
      ebin = Application.app_dir(:snakepit, "ebin")

      System.cmd("elixir", ["-pa", ebin, path],
        stderr_to_stdout: true,
        env: [{"ERL_CRASH_DUMP_SECONDS", "0"}]
      )
    end

    defp last_run(data_dir) do
      [run] = Snakepit.Ledger.History.list(data_dir)
      run
    end

    # At once, when the script's own process is gone: the prompt is back.
    for {name, body, options, status, output, by} <- [
          {"that ends", "6 * 7", "[]", 0, "result 42", :clean_shutdown},
          {"that raises", "raise \"oops\"", "[]", 1, "(RuntimeError) oops", :clean_shutdown},
          {"that exits", "exit(:oops)", "[]", 1, ":oops", :clean_shutdown},
          {"that takes too long", "Process.sleep(:infinity)", "[timeout: 300]", 1, "time out",
           :clean_shutdown},
          {"that halts in the end", "6 * 7", "[halt: true]", 0, "running", :clean_shutdown},
          {"that raises and halts in the end", "raise \"oops\"", "[halt: true]", 1,
           "(RuntimeError) oops", :clean_shutdown}
        ] do
      test "#{name} leaves nothing" do
        token = Family.token()
        {path, data_dir} = script(token, unquote(body), unquote(options))
        {said, status} = elixir(path)
        assert Family.members(token) == []
        assert status == unquote(status), said
        assert said =~ unquote(output)
        assert %{terminated_by: unquote(by), killed: 0} = last_run(data_dir)
      end
    end

    test "that halts in the midst of it leaves nothing, a moment later" do
      token = Family.token()

      {path, data_dir} =
        script(token, "IO.puts(\"guardian \#{Snakepit.Guardian.os_pid()}\"); System.halt(3)")

      {said, 3} = elixir(path)
      [guardian] = Regex.run(~r/guardian (\d+)/, said, capture: :all_but_first)
      eventually(fn -> not ProcScan.running?(String.to_integer(guardian)) end, 10_000)
      assert Family.members(token) == []
      assert [run_id] = Beam.run_ids(data_dir)
      assert File.exists?(Path.join([data_dir, run_id, "obituary"]))
    end

    # Below `nohup` SIGHUP is ignored, and whoever is started there does not get it either.
    ignored = File.read!("/proc/self/status") |> then(&Regex.run(~r/SigIgn:\s+([0-9a-f]+)/, &1))
    hangs_up? = ignored |> List.last() |> String.to_integer(16) |> rem(2) == 0

    for signal <- ["INT", "TERM", "KILL"] ++ if(hangs_up?, do: ["HUP"], else: []) do
      test "that gets SIG#{signal} leaves nothing" do
        token = Family.token()
        {path, _data_dir} = script(token, "Process.sleep(:infinity)")
        ebin = Application.app_dir(:snakepit, "ebin")
        # Without a terminal nobody is there to answer a menu.
        command = "exec elixir -pa #{ebin} #{path} </dev/null"

        port =
          Port.open({:spawn_executable, System.find_executable("sh")}, [
            :binary,
            :exit_status,
            :stderr_to_stdout,
            args: ["-c", command]
          ])

        {:os_pid, os_pid} = Port.info(port, :os_pid)
        eventually(fn -> length(Family.members(token)) == 4 end, 20_000)
        guardian = guardian_above(hd(Family.members(token)))
        {_output, 0} = System.cmd("kill", ["-#{unquote(signal)}", "#{os_pid}"])
        eventually(fn -> not ProcScan.running?(os_pid) end, 20_000)
        eventually(fn -> not ProcScan.running?(guardian) end, 20_000)
        assert Family.members(token) == []
      end
    end

    defp guardian_above(os_pid) do
      %{parent: parent} = ProcScan.stat(os_pid)
      if ProcScan.name(parent) == "snakepit_guardi", do: parent, else: guardian_above(parent)
    end
  end
end
