defmodule Snakepit.Bench.Application do
  @moduledoc """
  The start of the application and its stop, with nothing running, beside what they cannot do without:
  to open and to close a port and a DETS table, and to have a record on the disk, once for each.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.{DeadRuns, SecondBeam, Turns}

  @first [label: "first start in a BEAM", rounds: 5, within_ms: 20_000]

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
    progress("start and stop again and again")
    rounds = SecondBeam.with_beam(&SecondBeam.run(&1, @by_turns))

    first = Turns.repeat(@first, fn _number -> with_directory(&DeadRuns.start_ms/1) end)

    [
      beside(rounds, "start and stop, beside opening and closing", {:ratio, 2.0}, fn {on, off} ->
        on + off
      end),
      beside(rounds, "start, beside opening", nil, &elem(&1, 0)),
      beside(rounds, "stop, beside closing", nil, &elem(&1, 1)),
      row(name: "first start in a BEAM, with the code to load", rounds: first, unit: "ms")
    ]
  end

  defp beside(rounds, label, target, fun) do
    row(
      name: "#{label} a port, a DETS table, fdatasync",
      rounds: Turns.beside(rounds, :application, :baseline, &(fun.(&1) / 1000)),
      unit: "ms",
      target: target
    )
  end
end
