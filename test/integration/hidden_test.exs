defmodule Snakepit.HiddenTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000
  @moduletag :root

  # An ordinary user who sees what he may trace, and nothing else.
  @hidden ["unshare", "--mount", "sh", "-c"] ++
            ["mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"] ++
            ~w(setpriv --reuid 65534 --regid 65534 --clear-groups)

  @config [graceful_shutdown_timeout_ms: 300, watchdog: [grace_period_ms: 300]]

  unless System.find_executable("setcap") do
    IO.puts("skipped: no setcap, so there are no programs that their user may not trace")
    @moduletag skip: "no setcap"
  end

  # A program with a file capability: its user may signal it and not trace it, so `/proc` hides it from
  # him, and the kernel does not end it with its parent.
  setup do
    directory = Beam.temporary_directory()
    File.chmod!(directory, 0o755)
    program = Path.join(directory, "sleep")
    File.cp!(System.find_executable("sleep"), program)

    {_output, 0} = System.cmd("setcap", ["cap_net_raw+ep", program])
    home = Beam.temporary_directory()
    File.chmod!(home, 0o777)
    [program: program, home: home, copy: WrappedBeam.copy()]
  end

  @old_kernel Path.expand("../../script/old-kernel", __DIR__)

  defp start(context, kernel) do
    config = [data_dir: Path.join(context.home, "data")] ++ @config
    places = [ebin: Path.join(context.copy, "ebin"), cd: context.home]
    Beam.start(config, places ++ [env: [{"HOME", context.home}], wrapper: kernel ++ @hidden])
  end

  defp worker(beam, context, id \\ "one") do
    token = Family.token()
    command = inspect([context.program, token])
    code = "{:ok, child} = Snakepit.Test.Workers.start(\"#{id}\", #{command}); child.os_pid"
    os_pid = Beam.run(beam, code)
    eventually(fn -> Family.members(token) == [os_pid] end)
    # Nobody else's word for it: to its own BEAM there is no such directory.
    refute Beam.run(beam, "File.exists?(\"/proc/#{os_pid}/stat\")")

    on_exit(fn ->
      for left <- Family.members(token), do: System.cmd("kill", ["-KILL", "#{left}"])
    end)

    token
  end

  # On the older one there are no handles: only its lineage says who a hidden process is.
  for {kernel, wrapper} <- [{"this kernel", ["env"]}, {"an older kernel", [@old_kernel]}] do
    test "a worker that is hidden is ended by the next start, on #{kernel}", context do
      bystanders = Family.bystanders()
      first = start(context, unquote(wrapper))
      id = Beam.run(first, "Snakepit.run_id()")
      token = worker(first, context)
      Beam.kill_with_guardian(first)
      assert [_orphan] = Family.members(token)

      second = start(context, unquote(wrapper))
      assert Family.members(token) == []
      history = Beam.run(second, "Snakepit.RunState.history()")
      assert %{found: 1, gone: 1} = Enum.find(history, &(&1.run_id == id))
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end

    test "a worker that is hidden is ended after the death of the guardian, on #{kernel}",
         context do
      beam = start(context, unquote(wrapper))
      token = worker(beam, context)
      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      {_output, 0} = System.cmd("kill", ["-KILL", "#{guardian}"])
      eventually(fn -> Family.members(token) == [] end, 10_000)

      # And the next one works.
      ask = "try do Snakepit.Guardian.os_pid() catch :exit, _ -> nil end"
      eventually(fn -> Beam.run(beam, ask) not in [nil, guardian] end, 10_000)
      # Answered when everything that had to be started again has been.
      Beam.run(beam, "Supervisor.count_children(Snakepit.Supervisor)")
      another = worker(beam, context, "another")
      assert [_os_pid] = Family.members(another)
    end
  end
end
