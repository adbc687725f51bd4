defmodule Snakepit.TelemetryTest do
  # In a second BEAM, because one that has `:telemetry` cannot be without it any more.
  use ExUnit.Case, async: true

  import Snakepit.Test.WorkerCase, only: [fixture: 1, sh: 1]

  alias Snakepit.Test.{Beam, LogFile, Told}

  @telemetry Path.expand("../fixtures/telemetry.exs", __DIR__)
  @python System.find_executable("python3")

  defp beam, do: Beam.start([], libraries: [@telemetry])
  defp life(beam, opts, how), do: Beam.call(beam, Told, :life, [opts, how])

  test "a process that is lost with the guardian, and another in its place" do
    beam = beam()
    {first, events} = life(beam, [id: "a", cmd: ["sleep", "600"]], :lost)

    assert [
             {[:snakepit, :process, :started], _, %{os_pid: ^first}},
             {[:snakepit, :process, :restarted], %{count: 1, duration_ms: _},
              %{os_pid: second, previous_os_pid: ^first, reason: :guardian_down}},
             {[:snakepit, :process, :terminated], _, %{os_pid: second, reason: :normal}},
             {[:snakepit, :process, :cleanup_completed], _, %{success: true}}
           ] = events

    assert second != first
    Beam.kill(beam)
  end

  test "a process that starts and is stopped" do
    beam = beam()

    {os_pid, events} =
      life(
        beam,
        [id: "a", cmd: sh("echo hi; sleep 600"), ready: {:output, "hi"}],
        :stop
      )

    beam_pid = beam.os_pid

    assert [
             {[:snakepit, :process, :started], %{count: 1, startup_duration_ms: startup},
              %{worker_id: "a", os_pid: ^os_pid, beam_pid: ^beam_pid}},
             {[:snakepit, :process, :terminated], %{count: 1, uptime_ms: uptime},
              %{
                worker_id: "a",
                exit_code: nil,
                exit_signal: :sigterm,
                reason: :normal,
                output_tail: "hi\n"
              }},
             {[:snakepit, :process, :cleanup_completed],
              %{count: 1, cleanup_duration_ms: cleanup},
              %{worker_id: "a", cleanup_method: :graceful, success: true}}
           ] = events

    assert startup <= uptime
    assert cleanup <= uptime
  end

  test "a process that ends by itself, or with a crash of its worker" do
    beam = beam()
    {_os_pid, events} = life(beam, [id: "b", cmd: sh("sleep 0.1; echo why >&2; exit 3")], :itself)

    assert [
             _started,
             {[:snakepit, :process, :terminated], _,
              %{exit_code: 3, exit_signal: nil, reason: {:exit_status, 3}, output_tail: "why\n"}},
             {[:snakepit, :process, :cleanup_completed], _,
              %{cleanup_method: :exited, success: true}}
           ] = events

    {_os_pid, events} = life(beam, [id: "c", cmd: ["sleep", "600"]], :crash)

    assert [
             _started,
             {_, _, %{exit_code: nil, exit_signal: :sigkill, reason: :crash}},
             {_, _, %{cleanup_method: :forced, success: true}}
           ] = events
  end

  test "one that never gets ready was never started" do
    opts = [id: "d", cmd: ["sleep", "600"], ready: {:output, "never"}, ready_timeout: 50]
    events = for {event, _, _} <- Beam.call(beam(), Told, :failed_start, [opts]), do: event

    assert events == [
             [:snakepit, :process, :terminated],
             [:snakepit, :process, :cleanup_completed]
           ]
  end

  test "what takes time is a span, with one context from its start to its end" do
    spans = Beam.call(beam(), Told, :spans)
    by_context = spans |> Enum.group_by(&elem(&1, 3)) |> Map.values()

    for [begun, ended] <- by_context do
      assert {[name, :start], %{system_time: _, monotonic_time: from}, _, _} = begun
      assert {[^name, last], %{duration: duration, monotonic_time: to}, _, _} = ended
      assert last in [:stop, :exception]
      assert duration == to - from
    end

    ended = for [_begun, {[name, last], _, metadata, _}] <- by_context, do: {name, last, metadata}

    for expected <- [
          &match?({:launch, :stop, %{worker_id: "span", os_pid: _}}, &1),
          &match?(
            {:shutdown, :stop, %{worker_id: "span", reason: :normal, method: :graceful}},
            &1
          ),
          &match?({:command, :stop, %{operation: :cmd, program: "sh", status: 3}}, &1),
          &match?({:command, :stop, %{operation: :run, error: %{reason: :enoent}}}, &1),
          &match?(
            {:command, :exception, %{kind: :error, reason: %File.Error{reason: :enoent}}},
            &1
          ),
          &match?(
            {:checkout, :stop, %{worker: worker, pool: pool}}
            when is_pid(worker) and is_pid(pool),
            &1
          )
        ],
        do: assert(Enum.any?(ended, expected), inspect(ended))
  end

  test "a run that ends says how" do
    {run_id, event} = Beam.call(beam(), Told, :run_end)
    assert {%{count: 1, duration_ms: duration}, metadata} = event
    assert duration in 0..60_000

    assert metadata == %{
             run_id: run_id,
             terminated_by: :clean_shutdown,
             found: 0,
             killed: 0,
             ambiguous: 0
           }
  end

  test "heartbeats: pings, pongs and misses" do
    beam = beam()
    heartbeat = [ping_interval: 50, timeout_threshold: 300, max_missed_heartbeats: 2]

    opts = [
      id: "e",
      cmd: [@python, fixture("lifeline.py"), "stuck", "2"],
      heartbeat: heartbeat,
      ready: :heartbeat
    ]

    {_os_pid, events} = life(beam, opts, :itself)

    of = fn name ->
      for {[:snakepit, :heartbeat, ^name], numbers, metadata} <- events, do: {numbers, metadata}
    end

    # Two that are answered, if late, and two that are not. On a busy machine an answer may be late enough
    # to be missed first: then there is a ping more.
    assert length(of.(:ping_sent)) >= 4

    assert Enum.all?(
             of.(:ping_sent),
             &match?(
               {%{count: 1, timestamp: ms}, %{worker_id: "e"}} when ms > 1_700_000_000_000,
               &1
             )
           )

    assert [{%{count: 1, latency_ms: _}, %{worker_id: "e"}}, _] = of.(:pong_received)

    assert [
             {%{count: 1, missed_count: 1}, %{worker_id: "e", timeout_threshold_ms: 300}},
             {%{missed_count: 2}, _}
           ] = Enum.take(of.(:timeout), -2)

    assert {[:snakepit, :process, :terminated], _, %{reason: :heartbeat_timeout}} =
             Enum.find(events, &match?({[_, _, :terminated], _, _}, &1))
  end

  test "the default handlers write to the log" do
    beam = beam()
    assert Beam.run(beam, "Snakepit.ProcessTelemetry.attach_default_handlers()") == :ok

    assert Beam.run(beam, "Snakepit.ProcessTelemetry.attach_default_handlers()") ==
             {:error, :already_exists}

    {:ok, log} = LogFile.during(beam, Told, :noteworthy, ["f"])
    assert log =~ "worker f is ready"
    assert log =~ "worker f ended"
    assert log =~ "answered no heartbeat for 7 ms, 2 in a row"
    assert Beam.run(beam, "Snakepit.ProcessTelemetry.detach_default_handlers()") == :ok
  end

  test "without :telemetry nothing is attached and nothing else changes" do
    beam = Beam.start()

    assert Beam.run(beam, "Snakepit.ProcessTelemetry.attach_default_handlers()") ==
             {:error, :no_telemetry}

    assert Beam.run(
             beam,
             "{:ok, w} = Snakepit.Worker.start_link(cmd: [\"sleep\", \"600\"]); Snakepit.Worker.stop(w)"
           ) == :ok
  end
end
