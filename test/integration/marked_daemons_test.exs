defmodule Snakepit.MarkedDaemonsTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually
  import Snakepit.Test.WorkerCase, only: [number_in: 1]

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  # Leaves no room for a lineage, so that markers alone say whose a daemon is.
  @limited ~w(prlimit --locks=100:100)

  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]

  setup do
    bystanders = Family.bystanders()
    on_exit(fn -> assert Enum.all?(bystanders, &ProcScan.running?/1) end)
    [beam: Beam.start(@config, wrapper: @limited)]
  end

  # A daemon that keeps its environment, in a session of its own, and a leader that goes on or not.
  defp start(beam, then) do
    token = Family.token()
    script = "(setsid sleep #{token} &) ; #{then}"

    id =
      Beam.run(beam, """
      command = Snakepit.Command.new!(cmd: ["sh", "-c", #{inspect(script)}])
      asker = self()

      spawn(fn ->
        {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: "same")
        :ok = Snakepit.Guardian.release(child)
        send(asker, {:child, child})
        receive do :never -> :ok end
      end)

      child = receive do {:child, child} -> child end
      Process.put(child.id, child)
      child.id
      """)

    {id, token}
  end

  defp stop(beam, id),
    do: Beam.run(beam, "Snakepit.Guardian.stop(Process.get(#{id}), timeout: 300)")

  defp adopted(beam), do: Beam.run(beam, "{:ok, info} = Snakepit.Guardian.info(); info.adopted")

  test "a daemon ends with its worker, and not with another of the same id", %{beam: beam} do
    {first, of_first} = start(beam, "exec sleep 600")
    {second, of_second} = start(beam, "exec sleep 600")
    eventually(fn -> length(Family.members(of_first) ++ Family.members(of_second)) == 2 end)
    # Known as adopted, which is looked for once a second.
    eventually(fn -> adopted(beam) == 2 end)

    assert stop(beam, second) == :ok
    assert Family.members(of_second) == []
    assert [_daemon] = Family.members(of_first)
    assert stop(beam, first) == :ok
    assert Family.members(of_first) == []
  end

  test "a daemon is the leader's that has just been reaped, not the next one's", %{beam: beam} do
    # It loses its parent when the leader ends, and not before.
    go = Path.join(Beam.temporary_directory(), "go")
    token = Family.token()
    wait = "until [ -e #{go} ]; do sleep 0.02; done; exit 0"
    {_first, of_first} = start(beam, "setsid sleep #{token} & #{wait}")
    {second, of_second} = start(beam, "exec sleep 600")

    daemons = fn ->
      Family.members(of_first) ++ Family.members(of_second) ++ Family.members(token)
    end

    eventually(fn -> length(daemons.()) == 3 end)
    assert [_one] = Family.members(token)

    File.touch!(go)
    eventually(fn -> Family.members(of_first) ++ Family.members(token) == [] end)
    assert [_daemon] = Family.members(of_second)
    assert stop(beam, second) == :ok
    assert Family.members(of_second) == []
  end

  test "a daemon in the midst of execve is waited for until it shows whose it is", %{beam: beam} do
    pid_file = Path.join(Beam.temporary_directory(), "pid")
    fixture = Path.expand("../fixtures/in_execve.py", __DIR__)
    {id, _token} = start(beam, "exec python3 #{fixture} #{pid_file}")
    daemon = ProcScan.stat(eventually(fn -> number_in(pid_file) end))
    assert stop(beam, id) == :ok
    refute ProcScan.running?(daemon)
  end

  test "a daemon of a worker that comes again under its name is not left", %{beam: beam} do
    for _round <- 1..5 do
      {id, token} = start(beam, "exec sleep 600")
      eventually(fn -> length(Family.members(token)) == 1 end)
      assert stop(beam, id) == :ok
      assert Family.members(token) == []
    end

    eventually(fn -> adopted(beam) == 0 end)
  end
end
