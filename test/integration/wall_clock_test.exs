defmodule Snakepit.WallClockTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, ProcScan, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  @year 365 * 24 * 3600

  # A BEAM whose wall clock is off by as many seconds as its file says, at any moment.
  defp start(data_dir, seconds) do
    file = Path.join(Beam.temporary_directory(), "shift")
    set(file, seconds)
    env = [Shim.variable("shifts_the_clock"), {"CLOCK_SHIFT", file}]
    beam = Beam.start([data_dir: data_dir, audit_interval_ms: 100], env: env)
    # Else this would be a test of nothing.
    off = Beam.run(beam, "System.os_time(:second)") - System.os_time(:second)
    assert abs(off - seconds) < 100
    {beam, file}
  end

  defp set(file, seconds), do: File.write!(file, <<seconds::64-native-signed>>, [:raw])

  # In place: a new file would not be the one that the BEAM has mapped.
  defp jump(file, seconds) do
    {:ok, device} = :file.open(file, [:read, :write, :raw, :binary])
    :ok = :file.pwrite(device, 0, <<seconds::64-native-signed>>)
    :ok = :file.close(device)
  end

  test "a clock that jumps by years, forth and back, changes nothing" do
    bystanders = Family.bystanders()
    {beam, file} = start(Beam.temporary_directory(), 0)
    family = Family.start(beam, "before")
    :ok = Beam.run(beam, ~s|Snakepit.Pool.ProcessRegistry.reserve_worker("reserved")|)

    for seconds <- [5 * @year, -5 * @year, 90, 0] do
      jump(file, seconds)
      # A reservation of seconds is not one of years.
      assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.sweep_reservations()") == 0
      assert %{orphans: 0, stale_entries: 0} = Beam.run(beam, "Snakepit.Auditor.audit()")

      assert [%{uptime_ms: uptime}] =
               Beam.run(
                 beam,
                 "for worker <- Snakepit.workers(), do: Map.take(worker, [:uptime_ms])"
               )

      assert uptime in 0..60_000
      other = Family.start(beam, "at #{seconds}")

      assert Beam.run(beam, """
             {:ok, %{owner: owner}} = Snakepit.Pool.ProcessRegistry.get_worker_info("at #{seconds}")
             Snakepit.Test.Workers.stop(%{owner: owner})
             """) == :normal

      assert Family.members(other) == []
    end

    assert length(Family.members(family)) == 4
    jump(file, 5 * @year)
    :ok = Beam.run(beam, "Application.stop(:snakepit)")
    assert Family.members(family) == []
    assert Enum.all?(bystanders, &ProcScan.running?/1)
  end

  test "orphans of the future and of the past are reaped, and the history is in the order of what happened" do
    data_dir = Beam.temporary_directory()

    ids =
      for seconds <- [5 * @year, -5 * @year, @year] do
        {beam, _file} = start(data_dir, seconds)
        id = Beam.run(beam, "Snakepit.run_id()")
        family = Family.start(beam, "w")
        Beam.kill_with_guardian(beam)
        {id, family}
      end

    {beam, _file} = start(data_dir, -@year)
    for {_id, family} <- ids, do: assert(Family.members(family) == [])
    history = Beam.run(beam, "Snakepit.RunState.history()")
    assert Enum.map(history, & &1.run_id) == ids |> Enum.map(&elem(&1, 0)) |> Enum.reverse()
    assert Enum.all?(history, &(&1.terminated_by == :cleanup and &1.found == 4))
  end
end
