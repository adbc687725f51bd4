defmodule Snakepit.Bench.Usage do
  @moduledoc """
  What the kernel says a process has of memory and has used of the processors.
  """

  @doc "A line of `/proc/PID/smaps_rollup`, such as `Rss`, in kB."
  @spec kb(pos_integer(), String.t()) :: non_neg_integer()
  def kb(os_pid, key) do
    rollup = File.read!("/proc/#{os_pid}/smaps_rollup")
    [_, kb] = Regex.run(~r/^#{key}: +(\d+) kB$/m, rollup)
    String.to_integer(kb)
  end

  @doc """
  The nanoseconds that all threads of a process have run. `stat` counts ticks of 10 ms instead, which is
  more than some use in ten seconds.
  """
  @spec cpu_ns(pos_integer()) :: non_neg_integer()
  def cpu_ns(os_pid) do
    for thread <- File.ls!("/proc/#{os_pid}/task"), reduce: 0 do
      sum ->
        [ns | _] = File.read!("/proc/#{os_pid}/task/#{thread}/schedstat") |> String.split()
        sum + String.to_integer(ns)
    end
  end
end
