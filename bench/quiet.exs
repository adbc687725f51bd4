defmodule Snakepit.Bench.Quiet do
  @moduledoc """
  A thousand workers that do nothing: what their guardian takes of processor and memory, and what a
  command costs beside them. In a BEAM of their own, whose guardian has done nothing before.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{SecondBeam, Turns, Usage}

  @workers 1000
  # After their start: what is put off is done then.
  @settle_ms 3_000
  @look_ms 3_000
  @looks [label: "CPU time of the guardian", rounds: 9, within_ms: 60_000]

  # By turns, in the BEAM that has the workers.
  @commands """
  [cmd: :snakepit, system: :system]
  |> Enum.map(fn {way, kind} -> {way, fn -> Snakepit.Bench.Operations.command(kind) end} end)
  |> Snakepit.Bench.Turns.run(rounds: 15, within_ms: 30_000)
  |> Snakepit.Bench.Turns.beside(:cmd, :system)
  """

  @impl true
  def run, do: SecondBeam.with_beam(&measure/1)

  defp measure(beam) do
    progress("#{@workers} workers")
    start = "{_us, workers} = Snakepit.Bench.Spawning.workers(#{@workers}); length(workers)"
    @workers = SecondBeam.run(beam, start)
    guardian = SecondBeam.run(beam, "Snakepit.Guardian.os_pid()")
    Process.sleep(@settle_ms)

    memory = memory(guardian)
    cpu = cpu(guardian)
    progress("commands beside them")
    [cpu | memory] ++ [commands(SecondBeam.run(beam, @commands))]
  end

  defp cpu(guardian) do
    percent =
      Turns.repeat(@looks, fn _number ->
        before = Usage.cpu_ns(guardian)
        {us, :ok} = once(fn -> Process.sleep(@look_ms) end)
        (Usage.cpu_ns(guardian) - before) / (us * 1000) * 100
      end)

    row(
      name: "CPU time of the guardian, #{@workers} quiet workers",
      rounds: percent,
      unit: "% of a core",
      target: {:value, 0.1}
    )
  end

  # All resident pages, as if nobody else used those of libc, are the most that can be said to be the
  # guardian's. The proportional share counts each page once: a page of the guardian's own is divided
  # among it and the children that wait at the gate, which is why those belong to the sum.
  defp memory(guardian) do
    {:ok, workers} = File.read("/proc/#{guardian}/task/#{guardian}/children")
    # A child that waits at the gate has executed nothing yet.
    program = File.read_link!("/proc/#{guardian}/exe")
    waiting = for pid <- String.split(workers), waiting?(pid, program), do: pid
    private = Usage.kb(guardian, "Private_Clean") + Usage.kb(guardian, "Private_Dirty")
    pss = Enum.sum(for pid <- [guardian | waiting], do: Usage.kb(pid, "Pss"))

    for {label, kb, target} <- [
          {"all resident pages", Usage.kb(guardian, "Rss"), {:value, 2.5}},
          {"private pages", private, nil},
          {"proportional, and of #{length(waiting)} children at the gate", pss, nil}
        ] do
      row(
        name: "memory of the guardian, #{@workers} quiet workers, #{label}",
        value: kb * 1024 / 1_000_000,
        unit: "MB",
        target: target
      )
    end
  end

  defp waiting?(pid, program), do: File.read_link("/proc/#{pid}/exe") == {:ok, program}

  defp commands(rounds) do
    row(
      name: "Snakepit.cmd, p50, #{@workers} quiet workers beside it, beside System.cmd",
      rounds: for({us, baseline_us} <- rounds, do: {us / 1000, baseline_us / 1000}),
      unit: "ms",
      target: {:ratio, 2.5}
    )
  end
end
