defmodule Snakepit.Bench.Application do
  @moduledoc """
  The start of the application and its stop, with nothing running, beside what they cannot do without:
  to open and to close a port and a DETS table, and to have a record on the disk, once for each. Each with
  no, 1000 and 3000 other processes on the host.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{DeadRuns, Herd, SecondBeam, Turns}

  @first [label: "first start in a BEAM", rounds: 5, within_ms: 20_000]
  @others [0, 1000, 3000]

  # A table and records in the directory of the run: on the same disk.
  @by_turns """
  Logger.configure(level: :none)
  directory = Application.fetch_env!(:snakepit, :data_dir) <> "/baseline"
  File.mkdir_p!(directory)
  Snakepit.Bench.Turns.each([
    application: &Snakepit.Bench.Operations.application/0,
    baseline: fn -> Snakepit.Bench.Operations.port_and_files(directory) end
  ], rounds: 40, within_ms: 30_000)
  """

  @impl true
  def run do
    rounds =
      Herd.at_sizes(@others, :up, fn others ->
        progress("start and stop again and again, #{others} others")
        SecondBeam.with_beam(&SecondBeam.run(&1, @by_turns))
      end)

    first = Turns.repeat(@first, fn _number -> with_directory(&DeadRuns.start_ms/1) end)

    Enum.flat_map(@others, &rows(rounds[&1], &1)) ++
      [row(name: "first start in a BEAM, with the code to load", rounds: first, unit: "ms")]
  end

  defp rows(rounds, others) do
    [
      beside(rounds, others, "start and stop", "opening and closing", {:ratio, 2.0}, fn {on, off} ->
        on + off
      end),
      beside(rounds, others, "start", "opening", nil, &elem(&1, 0)),
      beside(rounds, others, "stop", "closing", nil, &elem(&1, 1))
    ]
  end

  defp beside(rounds, others, what, baseline, target, fun) do
    baseline = "#{baseline} a port, a DETS table, fdatasync"

    row(
      name: "#{what}, p50, #{others} others, beside #{baseline}",
      rounds: Turns.beside(rounds, :application, :baseline, &(fun.(&1) / 1000)),
      unit: "ms",
      target: target,
      scale: %{
        figure: "application #{what}",
        of: "other processes on the host",
        size: others,
        beside: baseline
      }
    )
  end
end
