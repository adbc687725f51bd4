defmodule Snakepit.SelfTestTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  @old_kernel Path.expand("../../script/old-kernel", __DIR__)

  # The process table of a namespace of its own, in which the BEAM is not pid 1.
  @numbered ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"] ++
              [
                """
                echo 498 > /proc/sys/kernel/ns_last_pid
                exec unshare --pid --fork sh -c 'echo 499 > /proc/sys/kernel/ns_last_pid; "$@"; exit $?' sh "$@"
                """,
                "sh"
              ]

  @empty ["unshare", "--mount", "sh", "-c"] ++
           ["mount -t tmpfs -o mode=755 tmpfs /proc && exec \"$@\"", "sh"]

  @refused [
    {"in a pid namespace with the /proc of another", ~w(unshare --pid --fork),
     ["start failed: /proc is that of another pid namespace", "--mount-proc"]},
    {"with the same pid in the /proc of another pid namespace", @numbered,
     [
       "/proc is that of another pid namespace (this BEAM is process 500 and has the pid 500 there)"
     ]},
    {"where /proc is empty", @empty,
     [
       "start failed: /proc does not show this BEAM (/proc/self: no such file or directory (enoent))",
       "mount -t proc proc /proc"
     ]},
    {"without pidfd_open", [@old_kernel, "--without", "pidfd_open"],
     ["start failed: pidfd_open is missing (enosys)", "Linux 5.10"]},
    {"where pidfd_open is forbidden", [@old_kernel, "--without", "pidfd_open=eperm"],
     ["start failed: pidfd_open is refused (operation not permitted (eperm))", "seccomp profile"]},
    {"where pidfd_send_signal is forbidden", [@old_kernel, "--without", "pidfd_send_signal"],
     ["start failed: pidfd_send_signal is refused (operation not permitted (eperm))"]}
  ]

  # What only the guardian can tell.
  @unable [
    {"where nobody may be a subreaper", "subreaper",
     "start failed: the guardian may not call prctl(PR_SET_CHILD_SUBREAPER) (operation not permitted (eperm))"},
    {"where nobody may ask for a parent-death signal", "death_signal",
     "start failed: the guardian may not call prctl(PR_SET_PDEATHSIG) (operation not permitted (eperm))"},
    {"where kill is forbidden", "kill",
     "start failed: the guardian may not call kill (operation not permitted (eperm))"},
    {"where a filter kills the guardian", "subreaper=kill",
     "start failed: the guardian was killed by SIGSYS: a system call filter forbids"}
  ]

  for {place, call, sentence} <- @unable do
    test "#{place} it does not start, says so, and leaves no process" do
      data_dir = Beam.temporary_directory()
      message = refusal(data_dir, [@old_kernel, "--without", unquote(call)])
      assert message =~ unquote(sentence)
      refute message =~ "data_dir"

      # The run is over, and the next start finds nothing to do.
      beam = Beam.start(data_dir: data_dir)
      assert Beam.run(beam, "Enum.map(Snakepit.RunState.history(), & &1.found)") in [[], [0]]
    end
  end

  # systemd's filters do so for @resources. The guardian can do without a higher priority.
  test "where a filter kills for setpriority, workers start and stop all the same" do
    beam = Beam.start([], wrapper: [@old_kernel, "--without", "setpriority=kill"])
    token = Family.start(beam)
    assert Beam.run(beam, "Snakepit.cleanup() |> elem(0)") == :ok
    assert Family.members(token) == []
    assert Beam.run(beam, ~s|Snakepit.cmd("nice", [])|) == System.cmd("nice", [])
  end

  for {place, wrapper, sentences} <- @refused do
    test "#{place} it does not start, says so, and leaves nothing" do
      bystanders = Family.bystanders()
      data_dir = Beam.temporary_directory()
      message = refusal(data_dir, unquote(wrapper))
      for sentence <- unquote(sentences), do: assert(message =~ sentence)
      refute message =~ "data_dir"
      assert File.ls!(data_dir) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  @hidden ["unshare", "--mount", "sh", "-c"] ++
            ["mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"]

  @nobody ~w(setpriv --reuid 65534 --regid 65534 --clear-groups)

  @member ~w(setpriv --reuid 65534 --regid 65534 --groups 4711)

  @exempt ["unshare", "--mount", "sh", "-c"] ++
            ["mount -t proc -o hidepid=2,gid=4711 proc /proc && exec \"$@\"", "sh"]

  for {place, wrapper, checks} <- [
        {"here", ["env"], []},
        {"with a finite RLIMIT_LOCKS", ~w(prlimit --locks=100:100), [:lock_limit]},
        {"as root, from whom hidepid hides nothing", @hidden, []},
        {"as a user from whom hidepid hides others", @hidden ++ @nobody, [:hidepid]},
        {"as a user whom hidepid exempts", @exempt ++ @member, []}
      ] do
    test "#{place} it starts, and warns of #{inspect(checks)} alone" do
      port = start_and_say(unquote(wrapper))
      {findings, said} = value(port, [])
      assert Enum.map(findings, & &1.check) == unquote(checks)
      assert Enum.all?(findings, &(&1.severity == :warning))

      for %{text: text, remedy: remedy} <- findings,
          do: assert([_, _] = String.split(said, "Snakepit: #{text}. #{remedy}."))

      if findings == [], do: refute(said =~ "[warning]")
    end
  end

  test "what cannot be seen of other places can be asked" do
    assert %{handles: handles, filtered: filtered, boot: true, table: :own} =
             Snakepit.SelfTest.facts()

    assert is_boolean(handles) and is_boolean(filtered)

    [first | rest] = [@old_kernel, "--without", "handles"]
    ebin = Application.app_dir(:snakepit, "ebin")
    code = "IO.inspect(Map.take(Snakepit.SelfTest.facts(), [:handles, :filtered]))"
    {said, 0} = System.cmd(first, rest ++ ["elixir", "-pa", ebin, "-e", code])
    assert said == "%{filtered: true, handles: false}\n"
  end

  describe "without CAP_KILL" do
    @no_kill ~w(setpriv --inh-caps -kill --bounding-set -kill)

    test "a process of another user is refused, and one of this user is not" do
      beam = Beam.start([], wrapper: @no_kill)
      token = Family.token()

      code = fn user ->
        ~s|case Snakepit.run("sleep", ["#{token}"], user: #{user}, timeout: 300) do | <>
          ~s|{:ok, result} -> result.status; {:error, error} -> {error.step, error.reason, Exception.message(error)} end|
      end

      assert {:cap_kill, :eperm, message} = Beam.run(beam, code.(65_534))

      assert message =~
               "the guardian has no CAP_KILL, so it could not end a process of another user"

      assert Family.members(token) == []
      assert Beam.run(beam, "Snakepit.Pool.ProcessRegistry.list_all_workers()") == []
      assert {nil, :timeout, _} = Beam.run(beam, code.(0))
      assert Family.members(token) == []
    end

    test "with it, another user's is not refused" do
      beam = Beam.start()
      code = ~s|Snakepit.cmd("id", ["-u"], user: 65534)|
      assert Beam.run(beam, code) == {"65534\n", 0}
    end
  end

  # Snakepit as it is started by everybody, in a BEAM that then says what it has found.
  defp start_and_say([program | arguments]) do
    home = Beam.temporary_directory()
    File.chmod!(home, 0o777)
    copy = Snakepit.Test.WrappedBeam.copy()

    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(Path.join(home, "data"))})
    {:ok, _} = Application.ensure_all_started(:snakepit)
    findings = Snakepit.SelfTest.findings()
    Logger.flush()
    IO.puts("value " <> inspect(findings, limit: :infinity, printable_limit: :infinity))
    Application.stop(:snakepit)
    """

    arguments = arguments ++ ["elixir", "-pa", Path.join(copy, "ebin"), "-e", code]
    options = [args: arguments, env: [{~c"HOME", to_charlist(home)}], cd: home]
    common = [:binary, :stderr_to_stdout, :exit_status, line: 1_000_000]
    Port.open({:spawn_executable, System.find_executable(program)}, common ++ options)
  end

  # Its value, and all else that it has said until its end.
  defp value(port, said, value \\ nil) do
    receive do
      {^port, {:data, {:eol, "value " <> text}}} ->
        value(port, said, text |> Code.eval_string() |> elem(0))

      {^port, {:data, {_, line}}} ->
        value(port, [said, line, "\n"], value)

      {^port, {:exit_status, 0}} ->
        {value, IO.iodata_to_binary(said)}

      {^port, {:exit_status, status}} ->
        flunk("it ended with #{status}: #{said}")
    after
      60_000 -> flunk("it does not end: #{said}")
    end
  end

  defp refusal(data_dir, wrapper, config \\ []) do
    start = fn -> Beam.start([data_dir: data_dir] ++ config, wrapper: wrapper) end
    assert_raise(RuntimeError, start).message
  end
end
