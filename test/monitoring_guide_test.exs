defmodule Snakepit.MonitoringGuideTest do
  # What guides/monitoring.md says, done. The packages that it names are stood in for by as much of them as is called.
  use ExUnit.Case, async: true

  import Snakepit.Test.{Eventually, Snippets}

  alias Snakepit.Test.{Beam, Metered}

  @root Path.expand("..", __DIR__)
  @examples Path.join(@root, "examples/monitoring")
  @promtool System.find_executable("promtool")
  @libraries for name <- ["telemetry", "reporters"],
                 do: Path.join(@root, "test/fixtures/#{name}.exs")

  @moduletag :long
  @moduletag timeout: 120_000

  test "every snippet is of a file that these tests run, and every alert has a section" do
    paths = assert_taken_from_files(page("guides/monitoring.md"))
    files = for name <- File.ls!(@examples), do: "examples/monitoring/#{name}"
    assert Enum.sort(Enum.uniq(paths)) == Enum.sort(["examples/monitoring.exs" | files])

    alerts = Regex.scan(~r/- alert: (\w+)/, page("priv/prometheus/alerts.yml"))
    sections = Regex.scan(~r/^### (Snakepit\w+)$/m, page("guides/monitoring.md"))
    assert Enum.map(alerts, &List.last/1) == Enum.map(sections, &List.last/1)
  end

  test "the configuration is what the application takes" do
    for name <- ["config.exs", "groups.exs"] do
      config = Config.Reader.read!(Path.join(@examples, name))
      assert %{metrics: %{enabled: true}} = Snakepit.Config.validate!(config[:snakepit])
    end

    [{module, _code}] = Code.compile_file(Path.join(@examples, "group.ex"))

    assert for(id <- ["render-7f3a9c", "render-02bd11"], do: apply(module, :group, [id])) == [
             "render",
             "render"
           ]
  end

  @tag skip: if(@promtool, do: false, else: "there is no Prometheus (script/bootstrap --all)")
  test "Prometheus takes its configuration, with the alerts where a dependency has them" do
    directory = Beam.temporary_directory()
    File.mkdir_p!(Path.join(directory, "deps"))
    File.ln_s!(@root, Path.join(directory, "deps/snakepit"))
    File.cp!(Path.join(@examples, "prometheus.yml"), Path.join(directory, "prometheus.yml"))
    options = [cd: directory, stderr_to_stdout: true]
    {said, status} = System.cmd("promtool", ["check", "config", "prometheus.yml"], options)
    assert status == 0, said
    assert said =~ "11 rules found"
  end

  test "definitions count what the text counts, and modules that are made of macros compile" do
    beam = Beam.start([metrics: [enabled: true]], libraries: @libraries)
    # Where it has :telemetry, as in an application that has it.
    Beam.run(beam, ":telemetry.events()")
    Beam.call(beam, Metered, :stay, [System.find_executable("python3"), fixture("lifeline.py")])
    :ok = Beam.call(beam, Metered, :work)
    # A heartbeat may come between the two that are compared.
    eventually(fn -> Beam.call(beam, Metered, :disagreements) == [] end)

    for name <- ["telemetry.ex", "prom_ex.ex", "live_dashboard.ex", "metrics_plug.ex"],
        do: Beam.run(beam, "Code.compile_file(#{inspect(Path.join(@examples, name))}) && :ok")

    assert %{:status => 200, :body => body, "content-type" => "application/openmetrics-text" <> _} =
             Beam.run(beam, "MyApp.MetricsPlug.call(%{}, [])")

    assert String.ends_with?(body, "# EOF\n")
    check_prom_ex(beam)
    check_live_dashboard(beam)
    Beam.kill(beam)
  end

  defp check_prom_ex(beam) do
    names = "Enum.map(metrics, & &1.name)"

    events =
      Beam.run(
        beam,
        "{:event, _group, metrics} = MyApp.PromEx.Snakepit.event_metrics([]); #{names}"
      )

    assert [:snakepit, :heartbeat_latency_seconds] in events
    refute [:snakepit, :pool_size] in events

    code =
      "{:polling, _group, rate, poll, metrics} = MyApp.PromEx.Snakepit.polling_metrics(poll_rate: 7); "

    assert {7, {Snakepit.Metrics, :poll, []}, polled} =
             Beam.run(beam, code <> "{rate, poll, #{names}}")

    assert [:snakepit, :pool_size] in polled
    assert Beam.run(beam, "Snakepit.Metrics.poll()") == :ok

    told =
      Beam.run(
        beam,
        "for {[:snakepit, :sampled, key], %{value: value}, labels} <- :telemetry.events(), do: {key, value, labels}"
      )

    assert {:pool_size, 2, %{pool: "Metered"}} in told
    assert {:guardian_up, 1, %{}} in told
  end

  defp check_live_dashboard(beam) do
    page = "MyAppWeb.SnakepitPage"
    assert {:ok, %{}, process: Snakepit.Supervisor} = Beam.run(beam, "#{page}.init([])")

    assert Beam.run(beam, "#{page}.menu_link(%{}, %{processes: [Snakepit.Supervisor]})") ==
             {:ok, "Snakepit"}

    assert Beam.run(beam, "#{page}.menu_link(%{}, %{processes: []})") ==
             {:disabled, "Snakepit"}

    assert {template, %{page: 1}} = Beam.run(beam, "#{page}.render(%{page: 1})")

    Code.ensure_loaded!(Snakepit.LiveDashboard)

    for [_all, name] <- Regex.scan(~r/Snakepit\.LiveDashboard\.(\w+)/, template),
        do:
          assert(
            function_exported?(
              Snakepit.LiveDashboard,
              String.to_atom(name),
              arity(template, name)
            ),
            name
          )

    params = "%{search: \"Meter\", sort_by: :id, sort_dir: :desc, limit: 1}"
    assert {[worker], 2} = Beam.run(beam, "Snakepit.LiveDashboard.workers(#{params}, node())")
    assert %{id: "Metered-2", state: :alive, processes: 1, memory_bytes: memory} = worker
    assert memory > 0
    summary = Beam.run(beam, "Snakepit.LiveDashboard.summary(node())")
    assert summary[:Workers] == 3
    assert summary[:State] == "running"
    assert is_integer(summary[:"Guardian (OS pid)"])
  end

  defp arity(template, name), do: if(template =~ "LiveDashboard.#{name}/2", do: 2, else: 1)

  test "without the package the user's module does not compile, and the error names it" do
    for {module, package} <- [{"PromEx", "prom_ex"}, {"LiveDashboard", "phoenix_live_dashboard"}] do
      code = "defmodule MyApp.Without do\n  use Snakepit.#{module}\nend"
      error = assert_raise CompileError, fn -> Code.compile_string(code, "lib/without.ex") end
      assert Exception.message(error) =~ "lib/without.ex:2: use Snakepit.#{module} needs"
      assert Exception.message(error) =~ "add {:#{package},"
    end

    error = catch_error(Snakepit.Metrics.definitions())
    assert Exception.message(error) =~ "add {:telemetry_metrics,"
  end

  defp fixture(name), do: Path.join(@root, "test/fixtures/#{name}")
end
