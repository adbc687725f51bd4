defmodule Snakepit.QuietTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family}

  @moduletag :long
  @moduletag timeout: 120_000

  # Everything that a well-behaved application does, twice, and what it wrote to the terminal.
  test "in normal operation nothing is found that should not be there, and nothing is said" do
    data_dir = Beam.temporary_directory()
    token = Family.token()

    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(data_dir)})
    Application.put_env(:snakepit, :audit_interval_ms, 50)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    family = ["sh", "-c", #{inspect(Family.script(token))}]

    for _round <- 1..3 do
      children = for n <- 1..10, do: Snakepit.Test.Workers.start("w\#{n}", family)
      0 = Snakepit.Auditor.audit().orphans
      for {:ok, child} <- children, do: :normal = Snakepit.Test.Workers.stop(child)
      0 = Snakepit.Auditor.audit().orphans
    end

    {:ok, child} = Snakepit.Test.Workers.start("ends", ["true"])
    {:ok, _} = Snakepit.Test.Workers.start("fails", ["false"])
    Process.exit(child.owner, :kill)
    # Workers have ended by the time that the barrier looks.
    Snakepit.Test.Eventually.eventually(fn -> match?({:ok, %{children: 0}}, Snakepit.Guardian.info()) end)
    {:ok, %{stopped: 0, killed: 0}} = Snakepit.cleanup()
    System.stop(0)
    Process.sleep(:infinity)
    """

    ebin = Application.app_dir(:snakepit, "ebin")

    for _ <- 1..2,
        do:
          assert(
            System.cmd("elixir", ["-pa", ebin, "-e", code], stderr_to_stdout: true) == {"", 0}
          )

    assert Family.members(token) == []

    assert [_, _] = history = Snakepit.Ledger.History.list(data_dir)
    for run <- history, do: assert(%{terminated_by: :clean_shutdown, found: 0, killed: 0} = run)
  end

  # Nor does the auditor take for an orphan what changes its parent while it looks.
  test "what daemonises all the time, below the guardian, is never taken for an orphan" do
    token = Family.token()
    beam = Beam.start()

    script = "while :; do (sleep 0.0#{String.replace(token, ".", "")} & ) ; done"

    Beam.run(
      beam,
      "Snakepit.Test.Workers.start_all(Enum.map(1..4, &\"w\#{&1}\"), [\"sh\", \"-c\", #{inspect(script)}]) |> length()"
    )

    counts = Beam.run(beam, "for _ <- 1..60, do: Snakepit.Auditor.audit().orphans")
    assert Enum.uniq(counts) == [0]
    assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.get_stats().alive_workers") == 4
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
  end
end
