defmodule Snakepit.TerminalDeathTest do
  # The BEAM is killed while terminals are in use: by shells with jobs, in front and behind.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  defp start(beam, token, terminal \\ "[]") do
    Beam.run(beam, """
    owner = self()
    code = "sleep #{token} & nohup setsid sleep #{token} >/dev/null 2>&1 & sleep #{token}\\n"

    spawn(fn ->
      Process.flag(:trap_exit, true)
      workers =
        for number <- 1..5 do
          {:ok, worker} =
            Snakepit.Worker.start_link(
              id: "shell\#{number}",
              cmd: ["bash", "--norc", "-i"],
              stdio: {:pty, #{terminal}}
            )

          :ok = Snakepit.Worker.write(worker, code)
          worker
        end

      send(owner, :started)
      receive do
        :stop -> Enum.each(workers, &Snakepit.Worker.stop/1)
      end
      send(owner, :stopped)
    end)
    |> Process.register(:owner_of_shells)

    receive do: (:started -> :ok)
    """)

    eventually(fn -> length(ProcScan.with_argument(token)) == 15 end)
  end

  for {name, signal} <- [{"kill -9", "KILL"}, {"SIGTERM", "TERM"}] do
    test "#{name} of the BEAM leaves nothing at its terminals" do
      beam = Beam.start(watchdog: [grace_period_ms: 2_000])
      token = Family.token()
      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      start(beam, token)
      Beam.kill(beam, unquote(signal))
      Beam.await_end(beam)
      eventually(fn -> not ProcScan.running?(guardian) end)
      assert ProcScan.with_argument(token) == []
    end
  end

  test "kill -9 of the BEAM with a flood at its terminal leaves nothing" do
    beam = Beam.start(watchdog: [grace_period_ms: 2_000])
    token = Family.token()
    guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
    start(beam, token)

    Beam.run(beam, """
    {:ok, worker} = Snakepit.Worker.start_link(
      cmd: ["sh", "-c", "while :; do echo #{token}; done", "#{token}"],
      stdio: {:pty, raw: true}
    )
    Process.unlink(worker)
    spawn(fn -> Snakepit.Worker.write(worker, :binary.copy("x", 10_000_000)) end)
    :ok
    """)

    Beam.kill(beam, "KILL")
    Beam.await_end(beam)
    eventually(fn -> not ProcScan.running?(guardian) end)
    assert ProcScan.with_argument(token) == []
  end
end
