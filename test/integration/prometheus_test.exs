defmodule Snakepit.PrometheusTest do
  # A real Prometheus reads what a second BEAM counts, and is asked everything that the dashboard and the alerts ask.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Bench.JSON
  alias Snakepit.Test.{Beam, Metered, Prometheus}

  @root Path.expand("../..", __DIR__)
  @alerts Path.join(@root, "priv/prometheus/alerts.yml")
  @dashboard Path.join(@root, "priv/grafana/snakepit.json")
  @there System.find_executable("prometheus") && System.find_executable("promtool")

  @moduletag :long
  @moduletag timeout: 180_000
  @moduletag skip: if(@there, do: false, else: "there is no Prometheus (script/bootstrap --all)")

  defp promtool(arguments, options \\ []),
    do: System.cmd("promtool", arguments, [stderr_to_stdout: true] ++ options)

  test "Prometheus reads the metrics, and has data for every query of the dashboard and of the alerts" do
    data_dir = Beam.temporary_directory()
    lost = Beam.start(data_dir: data_dir)
    Beam.run(lost, ~s|{:ok, _} = Snakepit.Worker.start_link(cmd: ["sleep", "600"])|)
    Beam.kill(lost)
    Beam.await_end(lost)

    beam = Beam.start(data_dir: data_dir, metrics: [enabled: true])
    Beam.call(beam, Metered, :await_activation)
    Beam.call(beam, Metered, :stay, [System.find_executable("python3"), fixture("lifeline.py")])
    :ok = Beam.call(beam, Metered, :work)
    target = Beam.call(beam, Metered, :serve)

    prometheus = Prometheus.start(Beam.temporary_directory(), target)
    assert [{_, 2.0}] = Prometheus.await(prometheus, "snakepit_pool_size")
    # What is there at the first look is no change. So everything happens again.
    :ok = Beam.call(beam, Metered, :work)
    ask_for_counts(prometheus)
    ask_all(prometheus)
    assert [_firing] = Prometheus.await(prometheus, firing("SnakepitWatchdogActivated"))
    assert Prometheus.query(prometheus, firing("SnakepitSurvivors")) == []
    Beam.kill(beam)
  end

  defp firing(alert), do: ~s|ALERTS{alertname="#{alert}", alertstate="firing"}|

  # Known from what was done twice.
  defp ask_for_counts(prometheus) do
    for {expression, expected} <- [
          {~s|snakepit_process_ends_total{group="job", reason="exit_status"}|, 2},
          {~s|snakepit_process_ends_total{group="job", reason="not_ready"}|, 2},
          {~s|snakepit_process_ends_total{group="job", reason="normal"}|, 6},
          {~s|snakepit_process_starts_total{group="job"}|, 8},
          {~s|snakepit_process_restarts_total{group="job", reason="failure"}|, 6},
          {~s|snakepit_process_start_failures_total{group="job", step="launch"}|, 2},
          {~s|snakepit_process_start_failures_total{group="job", step="ready"}|, 2},
          {~s|snakepit_launch_duration_seconds_count{group="job"}|, 10},
          {~s|snakepit_pool_checkouts_total{pool="Metered", result="ok"}|, 2},
          {~s|snakepit_commands_total{result="ok"}|, 2},
          {~s|snakepit_commands_total{result="error"}|, 2},
          {~s|snakepit_watchdog_activations_total|, 1},
          {~s|snakepit_workers{group="Metered"}|, 2},
          {~s|snakepit_pool_workers{pool="Metered", state="idle"}|, 2}
        ] do
      assert [_] = Prometheus.await(prometheus, "#{expression} == #{expected}"), expression
    end

    # Both had to compute before they could sleep.
    assert [_] =
             Prometheus.await(
               prometheus,
               ~s|snakepit_worker_cpu_seconds_total{group="Metered"} > 0|
             )

    # Only OpenMetrics has units.
    metadata = Prometheus.ask(prometheus, "/api/v1/metadata?metric=snakepit_worker_memory_bytes")

    assert %{"snakepit_worker_memory_bytes" => [%{"type" => "gauge", "unit" => "bytes"}]} =
             metadata
  end

  defp ask_all(prometheus) do
    panels = dashboard_queries()
    alerts = alert_queries(prometheus)
    assert length(panels) > 40
    assert length(alerts) == length(Regex.scan(~r/- alert:/, File.read!(@alerts)))

    for expression <- panels ++ alerts,
        do: assert([_ | _] = Prometheus.await(prometheus, expression), expression)
  end

  defp dashboard_queries do
    for %{"targets" => targets} <- JSON.decode!(File.read!(@dashboard))["panels"],
        %{"expr" => expression} <- targets do
      expression
      |> String.replace("$__rate_interval", "1m")
      |> String.replace(~r/\$(job|instance|group|pool)\b/, ".*")
    end
  end

  # What they compare with their threshold.
  defp alert_queries(prometheus) do
    for %{"rules" => rules} <- Prometheus.ask(prometheus, "/api/v1/rules")["groups"],
        %{"query" => expression} <- rules do
      assert [_all, compared] = Regex.run(~r/^(.*) [<>] [\d.]+$/s, expression)
      compared
    end
  end

  test "the alerts fire when they should, and only then" do
    tests = Path.join(@root, "test/fixtures/alerts_test.yml")
    {said, status} = promtool(["test", "rules", tests])
    assert status == 0, said

    # Each of them once with, and once without what it is about.
    tested = Regex.scan(~r/alertname: (\w+)\n +exp_alerts:( \[\])?/, File.read!(tests))

    for [_all, alert] <- Regex.scan(~r/- alert: (\w+)/, File.read!(@alerts)) do
      assert Enum.any?(tested, &match?([_, ^alert, " []"], &1)), "#{alert} never rests"
      assert Enum.any?(tested, &match?([_, ^alert], &1)), "#{alert} never fires"
    end
  end

  test "the text is what promtool demands" do
    beam = Beam.start(metrics: [enabled: true])
    text = Beam.run(beam, "Snakepit.Metrics.text(format: :prometheus)")
    path = temporary_path("metrics")
    File.write!(path, text)
    assert {"", 0} = System.cmd("sh", ["-c", ~s("$0" check metrics <"$1" 2>&1), "promtool", path])
    Beam.kill(beam)
  end
end
