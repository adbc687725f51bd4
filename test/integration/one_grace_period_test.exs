defmodule Snakepit.OneGracePeriodTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, Host, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  # Each has five seconds. One after the other that is thirty, and no container waits for longer than ten.
  @count 6
  @grace_ms 5_000
  @in_time_ms 2 * @grace_ms - 1

  defp start_host(beam, name, children, options \\ []),
    do: Beam.call(beam, Host, :run, [name, children, options])

  defp stubborn(token, count, stop_timeout),
    do: for(n <- 1..count, do: Host.stubborn("s#{n}", token, stop_timeout: stop_timeout))

  defp await(token, count), do: eventually(fn -> length(Family.members(token)) == count end)

  defp elapsed(fun) do
    begun = System.monotonic_time(:millisecond)
    fun.()
    System.monotonic_time(:millisecond) - begun
  end

  defp said(%{port: port} = beam, text \\ "") do
    receive do
      {^port, {:data, {_, line}}} -> said(beam, text <> line <> "\n")
      {^port, {:exit_status, status}} -> {status, text}
    after
      30_000 -> flunk("the BEAM has not ended; it said: #{text}")
    end
  end

  for {how, stop} <- [
        {"System.stop/0", quote(do: &Beam.tell(&1, "System.stop()"))},
        {"SIGTERM", quote(do: &Beam.kill(&1, "TERM"))}
      ] do
    test "six that ignore SIGTERM below a plain supervisor have one together: #{how}" do
      bystanders = Family.bystanders()
      beam = Beam.start()
      token = Family.token()
      :ok = start_host(beam, :host, stubborn(token, @count, @grace_ms))
      await(token, @count)

      ms =
        elapsed(fn ->
          unquote(stop).(beam)
          Beam.await_end(beam, 30_000)
        end)

      assert ms in @grace_ms..@in_time_ms
      assert Family.members(token) == []
      assert {0, text} = said(beam)
      # What is ended on purpose is no error.
      refute text =~ "[error]"
      assert [%{terminated_by: :clean_shutdown}] = Snakepit.Ledger.History.list(beam.data_dir)
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  test "also in supervisors below supervisors, and in pools beside them" do
    beam = Beam.start()
    token = Family.token()

    supervisors =
      for n <- 1..3 do
        workers =
          for letter <- ["a", "b"],
              do: Host.stubborn("#{letter}#{n}", token, stop_timeout: @grace_ms)

        start = {Supervisor, :start_link, [workers, [strategy: :rest_for_one]]}
        %{id: n, start: start, type: :supervisor}
      end

    cmd = ["sh", "-c", "trap '' TERM; exec sleep #{token}"]
    pool = {Snakepit.Pool, size: 3, worker: [stop_timeout: @grace_ms, cmd: cmd]}
    children = supervisors ++ [pool]
    :ok = start_host(beam, :host, children)
    await(token, 9)

    ms =
      elapsed(fn ->
        Beam.kill(beam, "TERM")
        Beam.await_end(beam, 30_000)
      end)

    assert ms in @grace_ms..@in_time_ms
    assert Family.members(token) == []
  end

  test "whatever stops one of them otherwise leaves its siblings alone" do
    beam = Beam.start()
    token = Family.token()
    children = stubborn(token, 3, 200)
    :ok = start_host(beam, :host, children, strategy: :rest_for_one, max_restarts: 100)
    await(token, 3)
    [first, second, third] = os_pids(beam)
    supervisor = Host.supervisor(:host)

    # By its supervisor.
    :ok = Beam.call(beam, Supervisor, :terminate_child, [supervisor, "s3"])
    await(token, 2)
    assert os_pids(beam) == [first, second]
    {:ok, _worker} = Beam.call(beam, Supervisor, :restart_child, [supervisor, "s3"])
    assert [^first, ^second, fourth] = os_pids(beam)

    # By a sibling that ends: the one after it is ended by the supervisor, the one before it is not.
    {_output, 0} = System.cmd("kill", ["-KILL", "#{second}"])

    eventually(fn ->
      match?([^first, fifth, sixth] when fifth != second and sixth != fourth, os_pids(beam))
    end)

    # By hand.
    %{pid: worker} = Enum.find(Beam.call(beam, Snakepit, :workers), &(&1.id == "s3"))
    :ok = Beam.call(beam, Snakepit.Worker, :stop, [worker])
    eventually(fn -> match?([^first, _, _], os_pids(beam)) end)
    assert ProcScan.running?(first)
    refute ProcScan.running?(third)
  end

  defp os_pids(beam) do
    Beam.run(beam, "for w <- Enum.sort_by(Snakepit.workers(), & &1.id), do: w.os_pid")
  end

  test "one that others need while they stop is asked when its supervisor gets to it" do
    beam = Beam.start()
    [token, others] = [Family.token(), Family.token()]
    asked = Path.join(Beam.temporary_directory(), "asked")
    # Notes how many of the others are there when it is asked.
    note = "trap 'ps -eo args= | grep -c \"^sleep #{others}$\" >#{asked}; exit' TERM"

    cmd = ["sh", "-c", note <> "; sleep #{token} & wait"]
    first = {Snakepit.Worker, id: "first", stop_order: :supervisor, cmd: cmd}
    children = [first | for(id <- ["second", "third"], do: Host.stubborn(id, others))]
    :ok = start_host(beam, :host, children)
    await(token, 1)
    await(others, 2)
    Beam.kill(beam, "TERM")
    Beam.await_end(beam, 30_000)
    assert File.read!(asked) == "0\n"
    assert [%{terminated_by: :clean_shutdown}] = Snakepit.Ledger.History.list(beam.data_dir)
  end

  test "an application that stops alone tells by prep_stop/1, and another's workers live on" do
    beam = Beam.start()
    [token, other] = [Family.token(), Family.token()]
    :ok = start_host(beam, :host, stubborn(token, @count, @grace_ms), prep_stop: true)
    :ok = start_host(beam, :other, [Host.stubborn("o", other)])
    await(token, @count)
    await(other, 1)

    ms = div(Beam.run(beam, "elem(:timer.tc(fn -> :ok = Application.stop(:host) end), 0)"), 1_000)
    assert ms in @grace_ms..@in_time_ms
    assert Family.members(token) == []
    assert [_os_pid] = Family.members(other)

    assert [%{id: "o", state: :alive}] =
             Beam.run(beam, "for w <- Snakepit.workers(), do: Map.take(w, [:id, :state])")

    # And it can be started again.
    assert Beam.run(beam, "Application.start(:host)") == :ok
    await(token, @count)
  end
end
