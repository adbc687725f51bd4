defmodule Snakepit.ServiceManagerTest do
  # The manager is a socket of this test's.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.ServiceManager
  alias Snakepit.Test.{Beam, Program, ProcScan}

  defp manager(address) do
    {:ok, socket} = :socket.open(:local, :dgram)
    :ok = :socket.bind(socket, %{family: :local, path: address})
    socket
  end

  defp start(name, config, env \\ []),
    do: Beam.start(config, env: [{"NOTIFY_SOCKET", name} | env])

  defp told(manager) do
    assert {:ok, text} = :socket.recv(manager, 0, [], 30_000)
    String.split(text, "\n")
  end

  # What comes in between says how many workers there are, or that it is alive.
  defp await(manager, line) do
    lines = told(manager)
    if line in lines, do: lines, else: await(manager, line)
  end

  defp all_until(manager, line) do
    lines = told(manager)
    if line in lines, do: lines, else: lines ++ all_until(manager, line)
  end

  defp path, do: Path.join(Beam.temporary_directory(), "manager")

  # The BEAM of `Snakepit.Test.Beam` reads requests for as long as it lives, and so never ends to boot.
  defp boot(name) do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(Beam.temporary_directory())})
    Application.put_env(:snakepit, :notify, true)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    env = [{~c"NOTIFY_SOCKET", String.to_charlist(name)}]
    Program.start("elixir", ["--no-halt", "-pa", ebin, "-e", code], env: env)
  end

  test "it is told when the BEAM has booted, how many workers there are, and when it stops" do
    path = path()
    manager = manager(path)
    beam = boot(path)
    assert told(manager) == ["READY=1"]
    assert told(manager) == ["STATUS=0 workers"]
    {"", 0} = System.cmd("kill", ["-TERM", "#{beam}"])
    assert ["STOPPING=1", "EXTEND_TIMEOUT_USEC=" <> time] = told(manager)
    assert String.to_integer(time) > 3_000_000
    eventually(fn -> not ProcScan.running?(beam) end)
    assert drain(manager) == []
  end

  test "an application that says itself when it is ready" do
    name = "snakepit-test-#{System.pid()}-#{System.unique_integer([:positive])}"
    manager = manager(<<0, name::binary>>)
    beam = start("@" <> name, notify: :manual)
    Beam.run(beam, ~s|Snakepit.ServiceManager.status("warming up")|)
    assert told(manager) == ["STATUS=warming up"]
    Beam.run(beam, "Snakepit.ServiceManager.ready()")
    assert told(manager) == ["READY=1"]
    # It is said once.
    Beam.run(beam, "Snakepit.ServiceManager.ready()")
    Beam.run(beam, ~s|Snakepit.ServiceManager.notify([{"ERRNO", 2}, {"X", "two\\nlines"}])|)
    lines = all_until(manager, "ERRNO=2")
    assert "X=two lines" in lines
    refute "READY=1" in lines
    # And after a stop and a start again.
    Beam.run(beam, "Application.stop(:snakepit)")
    assert ["STOPPING=1", _time] = await(manager, "STOPPING=1")
    {:ok, _} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    Beam.run(beam, "Snakepit.ServiceManager.ready()")
    assert told(manager) == ["READY=1"]
    Beam.run(beam, "Application.stop(:snakepit)")
    assert ["STOPPING=1", _time] = await(manager, "STOPPING=1")
  end

  test "its watchdog hears of the BEAM while the guardian answers" do
    path = path()
    manager = manager(path)
    beam = start(path, [notify: :manual], [{"WATCHDOG_USEC", "200000"}])
    await(manager, "WATCHDOG=1")
    Beam.run(beam, ":sys.suspend(Snakepit.Guardian)")
    # It looks more often than this.
    standstill(fn -> drain(manager) == [] end)
    Beam.run(beam, ":sys.resume(Snakepit.Guardian)")
    await(manager, "WATCHDOG=1")
    Beam.kill(beam)

    # It is meant for another process.
    other = path()
    manager = manager(other)
    beam = start(other, [notify: :manual], [{"WATCHDOG_USEC", "1000"}, {"WATCHDOG_PID", "1"}])
    Beam.run(beam, "Snakepit.ServiceManager.ready()")
    assert told(manager) == ["READY=1"]
    assert told(manager) == ["STATUS=0 workers"]
    Beam.tell(beam, "System.stop()")
    assert ["STOPPING=1" | _] = await(manager, "STOPPING=1")
    Beam.await_end(beam)
  end

  defp drain(manager) do
    case :socket.recv(manager, 0, [], 0) do
      {:ok, text} -> [text | drain(manager)]
      {:error, :timeout} -> []
    end
  end

  test "without a manager, or the wish, nothing is sent" do
    # In this BEAM, which has neither.
    assert ServiceManager.ready() == :ok
    assert ServiceManager.status("fine") == :ok
    assert ServiceManager.notify([{"READY", 1}]) == :ok
    assert ServiceManager.stopping() == :ok

    path = path()
    manager = manager(path)
    beam = start(path, [])
    Beam.run(beam, "Snakepit.ServiceManager.ready()")
    Beam.tell(beam, "System.stop()")
    Beam.await_end(beam)
    assert drain(manager) == []

    for address <- ["vsock:1:2", ""] do
      beam = start(address, notify: true)
      assert Beam.run(beam, "Snakepit.ServiceManager.ready()") == :ok
      Beam.kill(beam)
    end
  end
end
