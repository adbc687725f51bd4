defmodule Snakepit.CleanupScopeTest do
  # What is started while everything is ended is not ended.
  use Snakepit.Test.WorkerCase, async: false

  @moduletag :long

  # Keeps everybody waiting who waits for its end, and says that it was asked.
  defp slow(path) do
    script = "trap ': > #{path}; sleep 1; exit 1' TERM; echo up; while :; do sleep 0.02; done"
    [cmd: bash(script), ready: {:output, "up"}, stop_timeout: 10_000]
  end

  defp start_supervisor(path) do
    children = [
      {Worker, [id: "slow"] ++ slow(path)},
      {Worker, id: "quick-1", cmd: ["sleep", "600"]},
      {Worker, id: "quick-2", cmd: ["sleep", "600"]}
    ]

    # The default budget: a second end of one of them would be too much.
    {:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)
    supervisor
  end

  defp os_pids, do: Map.new(Snakepit.workers(), &{&1.id, &1.os_pid})

  for {name, ending} <- [
        cleanup: quote(do: assert({:ok, %{killed: 0}} = Snakepit.cleanup())),
        script: quote(do: assert(Snakepit.run_as_script(fn -> 42 end) == 42))
      ] do
    test "workers that their supervisor starts again live on (#{name})" do
      path = temporary_path("asked")
      supervisor = start_supervisor(path)
      before = os_pids()
      asked = Task.async(fn -> eventually(fn -> File.exists?(path) and again(before) end) end)
      unquote(ending)
      # Those came back while the slow one had not ended yet, and are the same ones still.
      again = Task.await(asked, 30_000)
      for id <- ["quick-1", "quick-2"], do: assert(os_pids()[id] == again[id])
      for {_id, os_pid} <- before, do: refute(ProcScan.running?(os_pid))
      assert Process.alive?(supervisor)
      eventually(fn -> map_size(os_pids()) == 3 and os_pids()["slow"] != before["slow"] end)
      assert Enum.all?(Map.values(os_pids()), &ProcScan.running?/1)
      :ok = Supervisor.stop(supervisor)
    end
  end

  # The quick ones as they are now, if both have come back.
  defp again(before) do
    now = os_pids()
    quick = ["quick-1", "quick-2"]
    if Enum.all?(quick, &(now[&1] not in [nil, before[&1]])), do: now
  end

  test "with a guardian that is lost meanwhile, too" do
    {:ok, supervisor} =
      Supervisor.start_link([{Worker, id: "kept", cmd: ["sleep", "600"]}], strategy: :one_for_one)

    first = os_pids()["kept"]
    guardian = Snakepit.Guardian.os_pid()
    :ok = :sys.suspend(Snakepit.Guardian)
    cleanup = Task.async(fn -> Snakepit.cleanup() end)
    kill(guardian)
    :ok = :sys.resume(Snakepit.Guardian)
    assert {:ok, _counts} = Task.await(cleanup, 30_000)
    refute ProcScan.running?(first)
    eventually(fn -> os_pids()["kept"] not in [nil, first] end)
    assert ProcScan.running?(os_pids()["kept"])
    assert Process.alive?(supervisor)
    :ok = Supervisor.stop(supervisor)
  end
end
