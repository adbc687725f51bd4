defmodule Snakepit.FloodTest do
  # Fifty programs that never stop printing, while others come and go. Five seconds of it are enough to
  # see a guardian that falls behind; `SNAKEPIT_LONG=1` makes it the full minute.
  use Snakepit.Test.GuardianCase, async: false

  alias Snakepit.{Guardian, ProcessKiller}

  @moduletag :soak
  @moduletag timeout: 180_000

  @long System.get_env("SNAKEPIT_LONG") not in [nil, ""]
  @seconds if @long, do: 60, else: 5
  @floods 50

  test "#{@floods} floods for #{@seconds} s cost less than 20 MB, and ends are told within 50 ms" do
    floods = for _ <- 1..@floods, do: run!(["yes"])
    guardian = Guardian.os_pid()
    deadline = System.monotonic_time(:millisecond) + @seconds * 1_000
    delays = delays(deadline, [])

    context =
      "#{length(delays)} ends, the slowest told after #{Enum.max(delays)} µs; #{peak(guardian)} kB"

    if @long, do: IO.puts(context)
    # Nine of ten: what else the machine does may hold up any single one.
    assert delays |> Enum.sort() |> Enum.at(div(length(delays) * 9, 10)) < 50_000, context
    assert peak(guardian) < 20_000, context
    assert {:ok, %{children: @floods}} = Guardian.info()

    for flood <- floods,
        do: assert({:ok, <<_::binary-size(65_536)>>} = Guardian.output_tail(flood))
  end

  # Microseconds from the death of a child to the message that says so.
  defp delays(deadline, delays) do
    if System.monotonic_time(:millisecond) > deadline do
      delays
    else
      child = run!(["sleep", "600"])

      {delay, {%{signal: :sigkill}, _tail}} =
        :timer.tc(fn ->
          :ok = ProcessKiller.kill_process(child.os_pid, :sigkill)
          await_exit(child)
        end)

      await_gone(child)
      delays(deadline, [delay | delays])
    end
  end

  # The most that was ever resident, in kB.
  defp peak(os_pid) do
    [_, kilobytes] = Regex.run(~r/VmHWM:\s+(\d+) kB/, File.read!("/proc/#{os_pid}/status"))
    String.to_integer(kilobytes)
  end
end
