defmodule Snakepit.SpawnPathTest do
  # The guardian dies at every system call between its start and the program's, and a child is caught
  # at every system call between its gate and its program. `strace` does the killing: it counts the
  # calls of one process and strikes at the one it is told to.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Native
  alias Snakepit.Test.{BareGuardian, Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  if System.find_executable("strace") == nil do
    @moduletag skip: "needs strace"
  end

  setup do
    Process.flag(:trap_exit, true)
    %{directory: Beam.temporary_directory(), bystanders: Family.bystanders()}
  end

  test "the guardian killed at any system call: only what was released runs", context do
    trace = Path.join(context.directory, "trace")
    guardian = BareGuardian.start(~w(strace -D -qq -o #{trace}))
    assert spawn_once(guardian, ["sleep", Family.token()]) == :all
    calls = calls(trace)
    BareGuardian.abandon(guardian)

    # From no answer at all to a program that ran. Before it becomes a subreaper it only prepares.
    calls = Enum.drop_while(calls, &(&1 != {"prctl", 1}))
    reached = for call <- calls, do: strike(call, context)
    # (Welcome and the first child come in one write, so there is nothing between them.)
    stages = [:nothing, :ready, :assigned, :released, :started]
    assert stages -- reached == []
    assert Enum.all?(context.bystanders, &ProcScan.running?/1)
  end

  # Name and count of every system call in a trace: `strace` counts those of each name.
  defp calls(trace) do
    names = for [_, name] <- Regex.scan(~r/^(\w+)\(/m, File.read!(trace)), do: name

    {calls, _counts} =
      Enum.map_reduce(names, %{}, fn name, counts ->
        counts = Map.update(counts, name, 1, &(&1 + 1))
        {{name, counts[name]}, counts}
      end)

    calls
  end

  defp strike({name, count}, context) do
    marker = Path.join(context.directory, "#{name}-#{count}")
    token = Family.token()
    # `-D`: the guardian stays the port's own child, and the tracer is one of its own.
    inject = "inject=#{name}:signal=KILL:when=#{count}"
    guardian = BareGuardian.start(~w(strace -D -qq -o /dev/null -e #{inject}))
    stage = spawn_once(guardian, ["sh", "-c", "touch #{marker}; sleep #{token}"])
    # No two runs make the same calls to the end: some are spared.
    if stage == :all, do: BareGuardian.abandon(guardian)

    # What a BEAM does that lost its guardian.
    assert {:ok, %{survivors: []}} = Native.run_sweep(guardian.run_id, [], 0, 5_000)
    assert Family.members(token) == []
    eventually(fn -> BareGuardian.remains(guardian) == [] end)

    released? = stage in [:released, :started, :all]
    assert released? or not File.exists?(marker), "killed at #{name} #{count} when #{stage}"
    stage
  end

  # The life of one child, step by step, each answered before the next: so it is known what the
  # guardian had been told when it died.
  defp spawn_once(guardian, cmd) do
    BareGuardian.tell(guardian, BareGuardian.hello(guardian))

    with {{:welcome, _, _, _, _}, guardian} <- step(:nothing, guardian, :welcome),
         {{:ready, id, _, _}, guardian} <- step(:welcomed, guardian, :ready),
         _ = BareGuardian.tell(guardian, BareGuardian.spawn_message(guardian, id, cmd)),
         _ = BareGuardian.tell(guardian, :info),
         {{:info, _}, guardian} <- step(:ready, guardian, :info),
         _ = BareGuardian.tell(guardian, {:tail, id}),
         {{:tail, _, _}, guardian} <- step(:assigned, guardian, :tail),
         _ = BareGuardian.tell(guardian, {:release, id}),
         {{:started, ^id}, guardian} <- step(:released, guardian, :started),
         _ = BareGuardian.tell(guardian, :info),
         {{:info, _}, _guardian} <- step(:started, guardian, :info) do
      :all
    end
  end

  defp step(stage, guardian, kind) do
    case BareGuardian.event(guardian, kind) do
      {{:exit_status, status}, _guardian} when status in [137, :epipe] -> stage
      {{:exit_status, status}, _guardian} -> flunk("ended with status #{status} when #{stage}")
      answer -> answer
    end
  end

  test "a guardian that cannot watch a child says so, and the child runs nothing", context do
    trace = Path.join(context.directory, "trace")
    guardian = BareGuardian.start(~w(strace -D -qq -o #{trace}))
    assert spawn_once(guardian, ["sleep", Family.token()]) == :all
    # The last two are the child's: one for its output, one for what it says through its gate.
    watched = for {"epoll_ctl", count} <- calls(trace), do: count
    BareGuardian.abandon(guardian)

    for count <- Enum.take(watched, -2) do
      marker = Path.join(context.directory, "#{count}")
      inject = "inject=epoll_ctl:error=ENOMEM:when=#{count}"
      guardian = BareGuardian.start(~w(strace -D -qq -o /dev/null -e #{inject}))
      BareGuardian.tell(guardian, BareGuardian.hello(guardian))
      {{:welcome, _, os_pid, _, _}, guardian} = BareGuardian.event(guardian, :welcome)
      {{:ready, id, child, _}, guardian} = BareGuardian.event(guardian, :ready)
      BareGuardian.tell(guardian, BareGuardian.spawn_message(guardian, id, ["touch", marker]))
      BareGuardian.tell(guardian, {:release, id})
      assert {{:failed, ^id, _step, :enomem}, guardian} = BareGuardian.event(guardian, :failed)
      eventually(fn -> not ProcScan.running?(child) end)
      refute File.exists?(marker)
      BareGuardian.abandon(%{guardian | os_pid: os_pid})
    end
  end

  # A guardian whose fork helpers are killed when they come to this call, of which it makes fewer itself.
  defp with_killed_helpers(call, count, hello) do
    inject = "inject=#{call}:signal=KILL:when=#{count}"
    guardian = BareGuardian.start(~w(strace -D -f -qq -o /dev/null -e trace=#{call} -e #{inject}))
    BareGuardian.tell(guardian, BareGuardian.hello(guardian, hello))
    {{:welcome, _, os_pid, _, _}, guardian} = BareGuardian.event(guardian, :welcome)
    %{guardian | os_pid: os_pid}
  end

  test "a fork helper that is killed in the midst of a batch: the next one goes on with it",
       context do
    guardian = with_killed_helpers("clone", 4, %{ahead: 0})
    BareGuardian.tell(guardian, {:fork, 8})

    {ready, guardian} =
      Enum.map_reduce(1..8, guardian, fn _, guardian -> BareGuardian.event(guardian, :ready) end)

    assert length(Enum.uniq_by(ready, &elem(&1, 2))) == 8
    # Nor is there one that was not announced.
    announced = Enum.sort([guardian.os_pid | Enum.map(ready, &elem(&1, 2))])
    eventually(fn -> Enum.sort(untraced(guardian)) == announced end)

    {:ready, id, child, _identity} = List.last(ready)
    token = Family.token()
    BareGuardian.tell(guardian, BareGuardian.spawn_message(guardian, id, ["sleep", token]))
    BareGuardian.tell(guardian, {:release, id})
    assert {{:started, ^id}, guardian} = BareGuardian.event(guardian, :started)
    eventually(fn -> Family.members(token) == [child] end)
    BareGuardian.abandon(guardian)
    assert untraced(guardian) == []
    assert Enum.all?(context.bystanders, &ProcScan.running?/1)
  end

  test "fork helpers that are killed before they fork: the request fails" do
    guardian = with_killed_helpers("close_range", 2, %{ahead: 2})
    BareGuardian.tell(guardian, {:fork, 1})
    assert {{:fork_failed, :echild}, guardian} = BareGuardian.event(guardian, :fork_failed)
    BareGuardian.abandon(guardian)
    assert untraced(guardian) == []
  end

  # The tracer has the same arguments.
  defp untraced(guardian) do
    for os_pid <- BareGuardian.remains(guardian), ProcScan.name(os_pid) != "strace", do: os_pid
  end

  for {kind, options} <- [{"as it is", []}, {"with another user", [user: 65_534]}] do
    if options != [], do: @tag(:root)

    test "a child held at any system call, #{kind}, does not outlive the guardian", context do
      trace = Path.join(context.directory, "trace")
      assert hold(trace, [], unquote(options)) == :sleeping
      calls = calls(trace)

      {before, [{"execve", 1} = execution | _of_the_program]} =
        Enum.split_while(calls, &(&1 != {"execve", 1}))

      held =
        for {name, count} <- before ++ [execution] do
          inject = "inject=#{name}:signal=STOP:when=#{count}"
          hold(trace, ["-e", inject], unquote(options))
        end

      # But for the wait at the gate, which it was in already.
      assert Enum.count(held, &(&1 == :sleeping)) <= 1
      assert length(held) > 10
      assert Enum.all?(context.bystanders, &ProcScan.running?/1)
    end
  end

  # Holds the child at one system call behind the gate, kills the guardian, and lets the child go
  # on: the kernel kills it, or it finds itself without a parent.
  defp hold(trace, arguments, options) do
    token = Family.token()
    guardian = BareGuardian.start()
    BareGuardian.tell(guardian, BareGuardian.hello(guardian))
    {{:welcome, _, os_pid, _, _}, guardian} = BareGuardian.event(guardian, :welcome)
    {{:ready, id, child, _}, guardian} = BareGuardian.event(guardian, :ready)
    # It is announced when it exists, which may be before it has come to its gate.
    eventually(fn -> in_call?(child, 47) end)
    attach(child, ["-o", trace] ++ arguments)

    BareGuardian.tell(
      guardian,
      BareGuardian.spawn_message(guardian, id, ["sleep", token], options)
    )

    BareGuardian.tell(guardian, {:release, id})
    held = eventually(fn -> held(child, token, trace) end)
    {_output, 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
    assert {{:exit_status, 137}, _} = BareGuardian.event(guardian, :exited)
    if held == :stopped, do: continue(child)
    eventually(fn -> not ProcScan.running?(child) end)
    assert Family.members(token) == []
    eventually(fn -> BareGuardian.remains(guardian) == [] end)
    held
  end

  # The pid may be nobody's by now.
  defp continue(os_pid) do
    System.cmd("kill", ["-CONT", "#{os_pid}"], stderr_to_stdout: true)
  end

  # Ends by itself, with the one that it traces.
  defp attach(os_pid, arguments) do
    strace = System.find_executable("strace")
    arguments = arguments ++ ["-p", "#{os_pid}"]
    options = [:binary, :stderr_to_stdout, line: 1_000, args: arguments]
    tracer = Port.open({:spawn_executable, strace}, options)
    assert_receive {^tracer, {:data, {:eol, line}}}, 5_000
    assert line =~ "Process #{os_pid} attached"
  end

  # `strace` itself stops it for a moment at each call, so the state in `/proc` does not tell.
  defp held(os_pid, token, trace) do
    if File.read!(trace) =~ "--- stopped by SIGSTOP ---",
      do: :stopped,
      else: sleeping(os_pid, token)
  end

  # In `clock_nanosleep`, and not on its way there.
  defp sleeping(os_pid, token) do
    with true <- os_pid in ProcScan.with_argument(token),
         true <- in_call?(os_pid, 230) do
      :sleeping
    else
      _ -> nil
    end
  end

  # By number: 47 is `recvmsg`, 230 `clock_nanosleep`.
  defp in_call?(os_pid, number) do
    case File.read("/proc/#{os_pid}/syscall") do
      {:ok, line} -> String.starts_with?(line, "#{number} ")
      {:error, _gone} -> false
    end
  end
end
