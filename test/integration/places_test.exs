defmodule Snakepit.PlacesTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  @nobody ~w(setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set -all)

  # A shell in between: the mount is made by root, then the rights are given away.
  @hidden ["unshare", "--mount", "sh", "-c"] ++
            ["mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"]

  # What the programs need, and where Erlang, Elixir and the test's files are.
  @kept [:code.root_dir(), :code.lib_dir(:elixir), System.tmp_dir!()]
        |> Enum.map(&(&1 |> to_string() |> Path.split() |> Enum.at(1)))
        |> Enum.concat(~w(bin dev etc lib lib64 proc usr))
        |> Enum.uniq()
        |> Enum.filter(&File.exists?("/" <> &1))
        |> Enum.sort()

  # On a file system of its own in a mount namespace of its own: it goes away with what runs there.
  @chroot ["unshare", "--mount", "sh", "-euc"] ++
            [
              """
              mount -t tmpfs tmpfs /mnt
              for name in #{Enum.join(@kept, " ")}; do
                if [ -L "/$name" ]; then
                  cp -P "/$name" /mnt
                else
                  mkdir "/mnt/$name"
                  mount --rbind "/$name" "/mnt/$name"
                fi
              done
              exec chroot /mnt "$@"
              """,
              "sh"
            ]

  for {place, wrapper} <- [
        {"as an ordinary user without capabilities", @nobody},
        {"with the BEAM as pid 1", ~w(unshare --pid --fork --mount-proc)},
        {"as an ordinary user with the BEAM as pid 1",
         ~w(unshare --pid --fork --mount-proc) ++ @nobody},
        {"as an ordinary user who sees only his own processes", @hidden ++ @nobody},
        {"in a chroot", @chroot},
        {"as an ordinary user in a chroot", @chroot ++ @nobody}
      ] do
    test "#{place}: workers start and stop, and nothing outlives the BEAM" do
      bystanders = Family.bystanders()
      beam = start(unquote(wrapper))
      assert output(beam, "echo hello") == "hello\n"

      # One that is stopped, with everything below it.
      stopped = Family.token()
      child = Beam.call(beam, Family, :launch, [stopped])
      eventually(fn -> length(Family.members(stopped)) == 4 end)
      assert Beam.call(beam, Snakepit.Guardian, :stop, [child]) == :ok
      assert Family.members(stopped) == []

      # One that outlives the BEAM for as long as the clean-up takes.
      token = Family.token()
      assert %{os_pid: _} = Beam.call(beam, Family, :launch, [token])
      Family.await(token)
      guardian = guardian_below(beam)
      assert ProcScan.running?(guardian)
      Beam.kill(beam)
      Beam.await_end(beam)
      eventually(fn -> not ProcScan.running?(guardian) end, 10_000)
      assert Family.members(token) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "#{place}: the guardian's death leaves nothing, and a new one works" do
      bystanders = Family.bystanders()
      beam = start(unquote(wrapper))
      token = Family.token()
      Beam.call(beam, Family, :launch, [token])
      Family.await(token)
      guardian = guardian_below(beam)
      {_output, 0} = System.cmd("kill", ["-KILL", "#{guardian}"])

      eventually(fn -> guardian_below(beam) not in [nil, guardian] end, 10_000)
      assert Family.members(token) == []
      # It is listed before it has answered the BEAM's greeting.
      Beam.run(beam, "Supervisor.which_children(Snakepit.Supervisor) |> length()")
      assert output(beam, "echo back") == "back\n"
      assert Enum.all?(bystanders, &ProcScan.running?/1)
      new = guardian_below(beam)
      Beam.kill(beam)
      eventually(fn -> not ProcScan.running?(new) end, 10_000)
    end
  end

  test "in a chroot, workers see what it has and nothing else" do
    beam = start(@chroot)
    assert output(beam, "ls /") == Enum.join(@kept, "\n") <> "\n"
  end

  defp start(wrapper) do
    WrappedBeam.start(wrapper: wrapper, config: [watchdog: [grace_period_ms: 500]])
  end

  defp output(beam, script) do
    Beam.run(beam, """
    {:ok, child} = Snakepit.Guardian.spawn(Snakepit.Command.new!(cmd: ["sh", "-c", #{inspect(script)}]))
    :ok = Snakepit.Guardian.release(child)
    receive do {Snakepit.Guardian, _, {:exited, %{status: 0}, tail}} -> tail end
    """)
  end

  # Its pid as it is seen from here, whatever it is called where it runs. What waits at its gate is
  # called the same, and is below it.
  defp guardian_below(beam) do
    helpers = children(beam.os_pid, "erl_child_setup")
    helpers |> Enum.flat_map(&children(&1, "snakepit_guardi")) |> List.first()
  end

  defp children(os_pid, name) do
    for %{os_pid: child, parent: ^os_pid, state: state} <- ProcScan.all(),
        state not in ["Z", "X"],
        File.read("/proc/#{child}/comm") == {:ok, name <> "\n"},
        do: child
  end
end
