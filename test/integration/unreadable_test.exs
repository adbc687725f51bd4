defmodule Snakepit.UnreadableTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, BeamPort, Family, ProcScan, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]
  @eio 5
  @enomem 12
  @emfile 24

  # Whoever takes what it cannot read for what is not there forgets the run, and with it the daemon that
  # carries no marker.
  for {what, call, path, errno, names} <- [
        {"the data directory", "readdir", "DATA", @eio, "cannot be read: I/O error"},
        {"whether a run is closed", "readdir", "DATA/RUN", @eio, "cannot be read: I/O error"},
        {"a ledger", "open", "DATA/RUN/ledger.dets", @emfile,
         "reap failed: too many open files (emfile)"},
        {"a journal", "open", "DATA/RUN/journal.old", @eio,
         "journal_read failed: I/O error (eio)"},
        {"who was adopted", "open", "DATA/RUN/adopted", @enomem,
         "reap failed: not enough memory (enomem)"},
        {"a lock", "open", "DATA/RUN/lock", @emfile, "reap failed: too many open files (emfile)"},
        {"the pid namespace", "statx", "/ns/pid", @enomem,
         "identify failed: not enough memory (enomem)"}
      ] do
    test "a start that cannot read #{what} fails, and the next one finds everything" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      first = Beam.start([data_dir: data_dir] ++ @config)
      run_id = Beam.run(first, "Snakepit.run_id()")
      family = Family.start(first)
      Beam.kill_with_guardian(first)
      assert length(Family.members(family)) == 4
      before = files(data_dir, run_id)

      path = unquote(path) |> String.replace("RUN", run_id) |> String.replace("DATA", data_dir)
      fails_at = "#{unquote(call)} #{path} #{unquote(errno)}"
      env = [Shim.variable("fails_at"), {"FAILS_AT", fails_at}]
      second = Beam.launch([data_dir: data_dir] ++ @config, env: env)
      error = assert_raise RuntimeError, fn -> BeamPort.value(second.port) end
      assert error.message =~ unquote(names)
      assert before -- files(data_dir, run_id) == []

      third = Beam.start([data_dir: data_dir] ++ @config)
      assert Family.members(family) == []
      history = Beam.run(third, "Snakepit.RunState.history()")
      assert %{found: 4, gone: 4} = Enum.find(history, &(&1.run_id == run_id))
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  defp files(data_dir, run_id), do: File.ls!(Path.join(data_dir, run_id))
end
