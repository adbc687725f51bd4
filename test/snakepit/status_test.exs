defmodule Snakepit.StatusTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.HeartbeatMonitor.Health
  alias Snakepit.Status
  alias Snakepit.Status.Table

  @worker %Status{
    worker_id: "a worker with a long name",
    run_id: "k3x9a2p",
    os_pid: 4711,
    state: :running,
    processes: 3,
    cpu_us: 61_000_000,
    rss_bytes: 3_565_158,
    uptime_ms: 8_100_000,
    heartbeat: %Health{status: :healthy, last_pong_ms_ago: 430},
    restarts: 2
  }

  test "a worker has its own row, with heartbeats, restarts and what its tree uses" do
    bridge = Application.app_dir(:snakepit, "priv/python")

    code =
      "from snakepit_bridge.heartbeat import HeartbeatClient as C; C().start(); import time; time.sleep(600)"

    command = ["python3", "-c", code]
    heartbeat = [ping_interval: 50]
    worker = [cmd: command, env: [{"PYTHONPATH", bridge}], heartbeat: heartbeat]
    name = :"status_test_#{System.unique_integer([:positive])}"
    pool = start_supervised!({Snakepit.Pool, name: name, size: 1, worker: worker})
    [%{id: id, os_pid: os_pid}] = Snakepit.Pool.info(pool).workers
    of_worker = fn -> Enum.find(Status.workers(), &(&1.worker_id == id)) end

    eventually(fn ->
      match?(%{heartbeat: %{last_pong_ms_ago: ms}} when ms != nil, of_worker.())
    end)

    assert %Status{state: :running, os_pid: ^os_pid, restarts: 0, processes: 1} =
             row = of_worker.()

    assert row.rss_bytes > 0 and row.cpu_us > 0 and row.run_id == Snakepit.run_id()
    assert Status.table() =~ ~r/^#{row.run_id}  running +#{Regex.escape(id)} +#{os_pid} +1 /m
  end

  test "a table has durations and sizes as people read them" do
    assert Table.render([@worker], :infinity) ==
             "RUN      STATE    WORKER                     OS_PID  PROCS    CPU  MEMORY  UPTIME  HEARTBEAT  RESTARTS\n" <>
               "k3x9a2p  running  a worker with a long name    4711      3  1m01s    3.3M   2h15m       0.4s         2"
  end

  test "what is not known is a hyphen" do
    starting = %{@worker | os_pid: nil, state: :starting, heartbeat: nil, restarts: nil}
    assert Table.render([starting], :infinity) =~ ~r/name +- .* - +-$/
  end

  test "no line is longer than the width; the name gives way first" do
    [_titles, row] = [@worker] |> Table.render(95) |> String.split("\n")
    assert row =~ ~r/running  a work.*… +4711/ and String.length(row) <= 95

    for width <- 1..120,
        line <- String.split(Table.render([@worker], width), "\n"),
        do: assert(String.length(line) <= width)
  end

  test "durations and sizes" do
    assert Enum.map([0, 9_999, 59_000, 185_000, 356_400_000], &Table.duration/1) ==
             ["0.0s", "9.9s", "59s", "3m05s", "4d03h"]

    assert Enum.map([0, 831_488, 104_857_600, 5_368_709_120], &Table.size/1) ==
             ["0K", "812K", "100M", "5.0G"]
  end

  test "a name cannot move the cursor of whoever looks" do
    refute Table.render([%{@worker | worker_id: "a\e[2Jb"}], :infinity) =~ "\e"
  end
end
