defmodule Snakepit.ReleaseTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan, Release}

  @moduletag :long
  @moduletag timeout: 120_000

  setup_all do
    project = Beam.temporary_directory() |> Release.project()
    assert {_said, 0} = Release.build(project)
    {:ok, project: project}
  end

  # Started by a shell that becomes the program, so that the port's pid is the program's.
  defp start(argv, env) do
    env = for {name, value} <- env, do: {String.to_charlist(name), String.to_charlist(value)}
    [program | arguments] = argv

    port =
      Port.open(
        {:spawn_executable, System.find_executable(program)},
        [:binary, :exit_status, :stderr_to_stdout, args: arguments, env: env]
      )

    {:os_pid, os_pid} = Port.info(port, :os_pid)

    process = ProcScan.stat(os_pid)

    on_exit(fn ->
      if ProcScan.running?(process), do: System.cmd("kill", ["-KILL", "#{os_pid}"])
    end)

    {port, os_pid}
  end

  defp await_exit(port, said \\ "") do
    receive do
      {^port, {:data, data}} -> await_exit(port, said <> data)
      {^port, {:exit_status, status}} -> {status, said}
    after
      30_000 -> flunk("has not ended; it said: #{said}")
    end
  end

  defp environment(token, home, workers) do
    [
      {"SHOP_TOKEN", token},
      {"SHOP_WORKERS", workers},
      {"SHOP_GRACE", "5000"},
      {"HOME", home},
      {"XDG_STATE_HOME", ""},
      {"STATE_DIRECTORY", ""},
      {"SNAKEPIT_DATA_DIR", ""},
      {"RELEASE_DISTRIBUTION", "none"}
    ]
  end

  defp data_dir(home), do: Path.join(home, ".local/state/snakepit/shop")

  defp members(token), do: Enum.flat_map(1..7, &Family.members("#{token}.#{&1}"))

  defp token, do: Family.token() |> String.split(".") |> List.last()

  @tag :root
  test "as pid 1 it stops within one grace period, however many workers use theirs", context do
    [token, home] = [token(), Beam.temporary_directory()]
    workers = Enum.map_join(1..6, ",", &"stubborn#{&1}")
    wrapper = ~w(unshare --pid --fork --kill-child --mount-proc)
    argv = wrapper ++ [Release.program(context.project), "start"]
    {port, os_pid} = start(argv, environment(token, home, workers))
    eventually(fn -> length(members(token)) == 12 end, 60_000)

    # The first of its namespace is what was forked.
    [first] = for %{os_pid: child, parent: ^os_pid} <- ProcScan.all(), do: child
    assert ProcScan.name(first) == "beam.smp"
    begun = System.monotonic_time(:millisecond)
    {_output, 0} = System.cmd("kill", ["-TERM", "#{first}"])
    assert {0, said} = await_exit(port)
    # One after the other they would take thirty seconds; containers are given ten.
    assert (System.monotonic_time(:millisecond) - begun) in 5_000..9_999
    refute said =~ "[error]"
    assert members(token) == []
    assert [%{terminated_by: :clean_shutdown}] = Snakepit.Ledger.History.list(data_dir(home))
  end

  # As in a container with a file system that is read-only; only what has to be written is elsewhere.
  @tag :root
  test "starts and stops from another directory, on a file system that is read-only", context do
    [token, home, tmp] = [token(), Beam.temporary_directory(), Beam.temporary_directory()]
    release = Path.join(context.project, "_build/prod/rel/shop")
    mount = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\""
    script = mount <> " && ! touch \"$0/touched\" && cd / && exec \"$0/bin/shop\" start"
    argv = ["unshare", "--mount", "sh", "-c", script, release]
    env = [{"RELEASE_TMP", tmp} | environment(token, home, "plain,daemons")]
    {port, os_pid} = start(argv, env)
    eventually(fn -> length(members(token)) == 4 end, 60_000)
    assert ProcScan.name(os_pid) == "beam.smp"
    {_output, 0} = System.cmd("kill", ["-TERM", "#{os_pid}"])
    assert {0, said} = await_exit(port)
    refute said =~ "[error]"
    assert members(token) == []
    assert [%{terminated_by: :clean_shutdown}] = Snakepit.Ledger.History.list(data_dir(home))
  end

  test "is built while the application runs in development, and has nothing of its runs",
       context do
    [token, home] = [token(), Beam.temporary_directory()]

    env =
      for(
        {name, value} <- Release.environment(environment(token, home, "plain")),
        value,
        do: {name, value}
      )

    argv = ["sh", "-c", "cd #{context.project} && exec mix run --no-halt"]
    {_port, os_pid} = start(argv, env)
    eventually(fn -> length(members(token)) == 1 end, 60_000)
    # A run is open: it has a socket in its directory, which nobody can copy.
    [run_id] = Beam.run_ids(data_dir(home))
    refute File.exists?(Path.join([data_dir(home), run_id, "history"]))

    assert {_said, 0} = Release.build(context.project)
    shipped = Path.wildcard("#{context.project}/_build/prod/rel/shop/lib/shop-*/priv/**")
    assert Enum.map(shipped, &Path.basename/1) == ["notes.txt"]
    assert File.ls!(Path.join(context.project, "priv")) == ["notes.txt"]
    {_output, 0} = System.cmd("kill", ["-TERM", "#{os_pid}"])
    eventually(fn -> not ProcScan.running?(os_pid) end, 20_000)
    assert members(token) == []
  end
end
