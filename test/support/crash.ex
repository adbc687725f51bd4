defmodule Snakepit.Test.Crash do
  @moduledoc "A run whose BEAM was killed, and whose guardian has written its obituary."

  alias Snakepit.Test.{Beam, Eventually}
  alias Snakepit.Worker

  @doc """
  Leaves one in a data directory: of a worker called "stubborn", which had to be killed. Returns the id of the run.
  """
  def leave(data_dir) do
    beam = Beam.start(data_dir: data_dir)
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    options = [id: "stubborn", cmd: ["bash", "-c", script], ready: {:output, "up"}]
    start = [Snakepit.WorkerSupervisor, {Worker, options}]
    {:ok, _pid} = Beam.call(beam, DynamicSupervisor, :start_child, start)
    run_id = Beam.run(beam, "Snakepit.run_id()")
    Beam.kill(beam)
    Beam.await_end(beam)
    path = Path.join([data_dir, run_id, "obituary"])
    Eventually.eventually(fn -> File.exists?(path) end)
    run_id
  end
end
