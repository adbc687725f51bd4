defmodule Snakepit.Bench.HerdTest do
  use ExUnit.Case, async: true

  @moduletag :long

  alias Snakepit.Bench.Herd
  alias Snakepit.Test.Eventually

  test "each size is visited while so many are there, upwards or downwards" do
    for {order, expected} <- [up: [0, 2, 5], down: [5, 2, 0]] do
      bench = self()

      visited =
        Herd.at_sizes([5, 0, 2], order, fn size ->
          send(bench, {order, size})
          readers()
        end)

      assert visited == %{0 => 0, 2 => 2, 5 => 5}
      assert for(_ <- 1..3, do: receive(do: ({^order, size} -> size))) == expected
    end
  end

  test "a herd goes with its herder, also when that is killed" do
    bench = self()

    assert_raise RuntimeError, "herd.py ended with status 137", fn ->
      Herd.with_herd([{3, nil}], fn herd ->
        send(bench, {:herd, Herd.living(herd)})
        {"", 0} = System.cmd("kill", ["-KILL", "#{herd.os_pid}"])
        Eventually.eventually?(fn -> Port.info(herd.port) == nil end, 5_000)
      end)
    end

    assert_received {:herd, [_, _, _] = os_pids}
    gone? = fn -> not Enum.any?(os_pids, &File.exists?("/proc/#{&1}")) end
    assert Eventually.eventually?(gone?, 5_000)
  end

  # Members of herds of this BEAM: grandchildren that were told to read a line.
  defp readers do
    ours = children(System.pid()) |> Enum.flat_map(&children/1) |> Enum.flat_map(&children/1)
    Enum.count(ours, &match?({:ok, "sh\0-c\0read line\0" <> _}, File.read("/proc/#{&1}/cmdline")))
  end

  defp children(os_pid) do
    for path <- Path.wildcard("/proc/#{os_pid}/task/*/children"),
        {:ok, text} <- [File.read(path)],
        child <- String.split(text),
        do: child
  end
end
