defmodule Snakepit.Cleanup.HookTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  alias Snakepit.Cleanup.Hook
  alias Snakepit.Config
  alias Snakepit.Test.{Beam, Family}

  defp config(hook, options \\ []), do: Config.validate!([before_reap: hook] ++ options)

  test "a function is called, and one that fails or hangs is reported and passed over" do
    path = Path.join(Beam.temporary_directory(), "called")
    assert Hook.call(:before_reap, config(nil)) == :ok
    assert Hook.call(:before_reap, config({File, :write!, [path, "yes"]})) == :ok
    assert File.read!(path) == "yes"

    for {hook, said} <- [
          {{:erlang, :error, [:oops]}, "has failed"},
          {{:erlang, :exit, [:shutdown]}, "has failed"},
          {{Snakepit.NoSuchModule, :run, []}, "has failed"},
          {{:timer, :sleep, [:infinity]}, "has not returned within 50 ms"}
        ] do
      log =
        capture_log(fn ->
          assert Hook.call(:before_reap, config(hook, reap_hook_timeout_ms: 50)) == :ok
        end)

      assert log =~ said and log =~ ":before_reap"
    end
  end

  test "what is no function with arguments is refused" do
    for wrong <- [
          {File, :write!},
          {File, :write!, :x},
          {"File", :x, []},
          {File, :x, [1 | 2]},
          &is_atom/1
        ] do
      assert_raise ArgumentError,
                   ~r/:before_reap to be nil or {module, function, arguments}/,
                   fn ->
                     config(wrong)
                   end
    end
  end

  @tag :long
  test "the first is called when the orphans are there, and the second when they are gone" do
    token = Family.token()
    beam = Beam.start()
    # An orphan that the kernel does not end with the two: it is no child of the guardian's.
    script = "trap '' TERM; sleep #{token} & wait"

    {:ok, _child} =
      Beam.call(beam, Snakepit.Test.Workers, :start, ["orphan", ["bash", "-c", script]])

    Snakepit.Test.Eventually.eventually(fn -> length(Family.members(token)) == 1 end)
    Beam.kill_with_guardian(beam)
    path = Path.join(Beam.temporary_directory(), "seen")

    next =
      Beam.start(
        data_dir: beam.data_dir,
        before_reap: {Snakepit.Test.Seen, :note, [path, token]},
        after_reap: {Snakepit.Test.Seen, :note, [path, token]}
      )

    assert File.read!(path) == "1\n0\n"
    Beam.kill(next)
  end

  test "the start goes on without those that fail" do
    hang = {:timer, :sleep, [:infinity]}

    options = [
      before_reap: hang,
      after_reap: {:erlang, :error, [:oops]},
      reap_hook_timeout_ms: 50
    ]

    beam = Beam.start(options)
    assert Beam.run(beam, "Snakepit.RunState.current()") == :running
    Beam.kill(beam)
  end
end
