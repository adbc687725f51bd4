defmodule Snakepit.CommandTest do
  use ExUnit.Case, async: true

  alias Snakepit.Command
  alias Snakepit.Guardian.Environment

  doctest Command

  defp request(opts) do
    markers = [{"SNAKEPIT_RUN_ID", "k3x9a2p"}]

    {:ok, request} =
      [cmd: ["true"]]
      |> Keyword.merge(opts)
      |> Command.new!()
      |> Command.to_request(markers)

    request
  end

  test "says what was expected and what was given, for every option" do
    for {opts, message} <- [
          {[], ~r/:cmd is required/},
          {[cmd: []], ~r/:cmd to be a list that names a program, got: \[\]/},
          {[cmd: [""]], ~r/:cmd .* got: \[""\]/},
          {[cmd: "ls -l"], ~r/:cmd .* got: "ls -l"/},
          {[cmd: ["ls", 1]], ~r/:cmd to be strings, got: 1/},
          {[cmd: ["ls", ~c"x"]], ~r/:cmd to be strings/},
          {[cmd: ["a\0b"]], ~r/NUL/},
          {[cmd: ["ls"], envs: []], ~r/unknown option :envs/},
          {[cmd: ["ls"], env: [1]], ~r/:env/},
          {[cmd: ["ls"], env: [{"A=B", "c"}]], ~r/names without =/},
          {[cmd: ["ls"], env: [{"", "c"}]], ~r/:env/},
          {[cmd: ["ls"], env: [{"A", "a\0"}]], ~r/NUL/},
          {[cmd: ["ls"], env: [{"A", :b}]], ~r/:env/},
          {[cmd: ["ls"], clear_env: 1], ~r/:clear_env to be true or false/},
          {[cmd: ["ls"], cd: ~c"/"], ~r/:cd to be a path/},
          {[cmd: ["ls"], umask: 0o1000], ~r/:umask/},
          {[cmd: ["ls"], stdio: :pipe], ~r/:stdio/},
          {[cmd: ["ls"], stdio: {:file, 1}], ~r/:stdio/},
          {[cmd: ["ls"], user: :root], ~r/:user to be a name or a number/},
          {[cmd: ["ls"], group: -1], ~r/:group/},
          {[cmd: ["ls"], groups: "x"], ~r/:groups/},
          {[cmd: ["ls"], nice: 20], ~r/:nice/},
          {[cmd: ["ls"], rlimits: [files: 1]], ~r/:rlimits to be names among/},
          {[cmd: ["ls"], rlimits: [locks: 1]], ~r/:rlimits to be names among/},
          {[cmd: ["ls"], rlimits: [nofile: -1]], ~r/:rlimits/},
          {[cmd: ["ls"], rlimits: [nofile: {1, 2, 3}]], ~r/:rlimits/},
          {[cmd: ["ls"], oom_score_adj: 1001], ~r/:oom_score_adj/},
          {[cmd: ["ls"], stop_signal: :sigfoo],
           ~r/:stop_signal to be a signal such as :sigterm or a number, got: :sigfoo/},
          {[cmd: ["ls"], stop_timeout: -1], ~r/:stop_timeout/},
          {[cmd: ["ls"], stop_timeout: 5_000_000_000], ~r/:stop_timeout/},
          {[cmd: ["ls"], kill_mode: :all], ~r/:kill_mode to be :tree, :group, :leader or :mixed/},
          {"ls", ~r/keyword list/}
        ] do
      assert_raise ArgumentError, message, fn -> Command.new!(opts) end
    end
  end

  test "limits are pairs of soft and hard, by number" do
    unlimited = 18_446_744_073_709_551_615
    limits = [nofile: 10, core: {0, :infinity}, cpu: :infinity]

    assert request(rlimits: limits).limits == [
             {7, 10, 10},
             {4, 0, unlimited},
             {0, unlimited, unlimited}
           ]
  end

  test "how it is ended travels with it" do
    assert request([]).stop == {:sigterm, nil, :tree, nil}
    options = [stop_signal: :sigint, stop_timeout: 5, kill_mode: :leader]
    assert request(options).stop == {:sigint, 5, :leader, nil}
    aborting = [abort_signal: :sigabrt, abort_timeout: 7] ++ options
    assert request(aborting).stop == {:sigint, 5, :leader, {:sigabrt, 7}}
    # A supervisor waits for both.
    assert Snakepit.Worker.child_spec(aborting).shutdown == 5 + 7 + 5_000

    assert Snakepit.Worker.Options.new!([cmd: ["true"]] ++ options).command.stop_timeout == 5
    plain = Snakepit.Worker.Options.new!(cmd: ["true"])
    # The worker's own stop has a default, other endings have their own.
    assert {plain.stop_timeout, plain.command.stop_timeout} == {2_000, nil}
  end

  test "options win over the BEAM's changes, markers over all" do
    changes = [{"A", "changed"}, {"B", "changed"}, {"GONE", nil}]
    env = [{"B", "option"}, {"C", nil}, {"SNAKEPIT_RUN_ID", "forged"}]
    request = Environment.add(request(env: env), changes)
    assert Enum.sort(request.set) == ["A=changed", "B=option", "SNAKEPIT_RUN_ID=k3x9a2p"]
    others = ["NOTIFY_SOCKET", "SNAKEPIT_LIFELINE_FD", "WATCHDOG_PID", "WATCHDOG_USEC"]
    assert Enum.sort(request.unset) == ["C", "GONE" | others]
    assert request.inherit

    cleared = Environment.add(request(env: env, clear_env: true), changes)
    assert Enum.sort(cleared.set) == ["B=option", "SNAKEPIT_RUN_ID=k3x9a2p"]
    refute cleared.inherit
  end

  # One that may become no other user has nothing to change.
  @own_uid File.stat!("/proc/self").uid

  test "a user brings its groups, and a number without an account no other's" do
    assert %{uid: 0, gid: 0, groups: [0 | _]} = request(user: "root")
    assert request(user: "nobody") == request(user: request(user: "nobody").uid)
    number = 3_999_999_999
    assert %{uid: ^number, gid: ^number, groups: []} = request(user: number)
    assert %{uid: ^number, gid: 7, groups: [8]} = request(user: number, group: 7, groups: [8])

    if @own_uid != 0,
      do: assert(%{uid: @own_uid, gid: nil, groups: nil} = request(user: @own_uid))

    assert %{uid: 0, gid: 7, groups: [8]} = request(user: "root", group: 7, groups: [8])

    for opts <- [[user: "no-such-user"], [group: "no-such-group"], [groups: ["no-such-group"]]] do
      command = Command.new!([cmd: ["true"]] ++ opts)

      assert {:error, %Snakepit.Error{reason: :enoent} = error} = Command.to_request(command, [])

      assert Exception.message(error) =~ "no-such-"
    end
  end
end
