defmodule Snakepit.Bench.Ports do
  @moduledoc """
  Starting processes as any BEAM can: through ports.
  """

  @patience_ms 60_000

  @doc "One after the other: the µs until the last `Port.open/2` has returned."
  @spec one_after_the_other(pos_integer()) :: float()
  def one_after_the_other(count) do
    program = System.find_executable("cat")

    {us, ports} =
      Snakepit.Bench.once(fn ->
        for _one <- 1..count, do: Port.open({:spawn_executable, program}, [:binary])
      end)

    os_pids = for port <- ports, do: port |> Port.info(:os_pid) |> elem(1)
    Enum.each(ports, &Port.close/1)
    await_gone(os_pids, System.monotonic_time(:millisecond) + @patience_ms)
    us
  end

  @doc """
  Each by a process of its own, all at once. Gives the µs until the last `Port.open/2` has returned,
  which is when the process has been forked and not, as through the gate, when its program runs.
  """
  @spec at_once(pos_integer()) :: float()
  def at_once(count) do
    # It ends when its input does, so however this BEAM ends.
    program = System.find_executable("cat")
    bench = self()

    owners =
      for _one <- 1..count do
        spawn_link(fn ->
          receive do: (:go -> :ok)
          port = Port.open({:spawn_executable, program}, [:binary])
          send(bench, :running)
          receive do: (:done -> :ok)
          {:os_pid, os_pid} = Port.info(port, :os_pid)
          send(bench, {:os_pid, os_pid})
          Port.close(port)
        end)
      end

    {us, _} =
      Snakepit.Bench.once(fn ->
        for owner <- owners, do: send(owner, :go)
        for _owner <- owners, do: receive(do: (:running -> :ok))
      end)

    for owner <- owners, do: send(owner, :done)
    os_pids = for _owner <- owners, do: receive(do: ({:os_pid, os_pid} -> os_pid))
    await_gone(os_pids, System.monotonic_time(:millisecond) + @patience_ms)
    us
  end

  defp await_gone(os_pids, deadline) do
    case Enum.filter(os_pids, &File.exists?("/proc/#{&1}")) do
      [] ->
        :ok

      left ->
        if System.monotonic_time(:millisecond) > deadline,
          do: raise("#{length(left)} processes do not end")

        Process.sleep(10)
        await_gone(left, deadline)
    end
  end
end
