defmodule Snakepit.DashboardTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.{Dashboard, Pool}
  alias Snakepit.Dashboard.Feed
  alias Snakepit.Test.{Beam, Crash, HTTP, Workers}

  @token "a-token-of-the-tests"

  # Returns its URL without token and query.
  defp serve(options \\ []) do
    start_supervised!({Dashboard, [port: 0] ++ options})
    Dashboard.url() |> String.split("?") |> hd()
  end

  defp overview(base), do: HTTP.json(base <> "api/overview")
  defp row(base, id), do: Enum.find(overview(base)["workers"], &(&1["id"] == id))
  defp detail(base, id), do: HTTP.json(base <> "api/worker?id=" <> URI.encode_www_form(id))

  test "shows this run, and a worker with its tree, what it uses and what it writes" do
    base = serve()
    id = "a worker/é?&"
    script = "echo hello from it; sleep 600 & wait"
    {:ok, worker} = Worker.start_link(id: id, cmd: sh(script), ready: {:output, "hello"})
    os_pid = Worker.os_pid!(worker)

    overview = eventually(fn -> row(base, id) && overview(base) end)
    assert overview["run"]["id"] == Snakepit.run_id()
    assert overview["run"]["state"] == "running"
    assert overview["guardian"]["os_pid"] == Snakepit.Guardian.os_pid()
    assert overview["beam"]["os_pid"] == String.to_integer(System.pid())
    assert overview["total"]["workers"] >= 1
    assert overview["actions"] == []

    eventually(fn -> row(base, id)["processes"] == 2 end)
    row = row(base, id)
    assert %{"state" => "running", "os_pid" => ^os_pid, "kind" => "worker"} = row
    assert row["command"] == "sh -c " <> script
    assert row["memory"] > 0 and row["restarts"] == 0
    refute Map.has_key?(row, "series")
    past = HTTP.json(base <> "api/overview?past=1")["workers"]
    assert [[_at, _cpu, _memory] | _] = Enum.find(past, &(&1["id"] == id))["series"]

    detail = detail(base, id)
    assert [%{"os_pid" => ^os_pid, "children" => [child]}] = detail["tree"]
    assert child["os_pid"] in ProcScan.descendants(os_pid)
    assert child["command"] == "sleep 600"
    assert detail["output"] == "hello from it\n"
    assert detail["command"] == ["sh", "-c", script]
    Worker.stop(worker)
    eventually(fn -> row(base, id) == nil end)
    assert detail(base, "nobody") == %{"id" => "nobody", "state" => "gone"}
  end

  test "tells how a worker has ended, with the end of its output" do
    base = serve()
    {:ok, _worker} = Worker.start_link(id: "fails", cmd: sh("echo oops \xFF; exit 3"))

    events =
      eventually(fn ->
        events = for %{"worker" => "fails"} = event <- overview(base)["events"], do: event
        if length(events) == 2, do: events
      end)

    assert [%{"kind" => "ended", "level" => "bad"} = ended, %{"kind" => "started"}] = events
    assert ended["text"] =~ "the program ended with status 3 after"
    assert ended["output"] == "oops \uFFFD\n"
  end

  test "tells of a worker that could not be started, or was not ready in time" do
    base = serve()
    {:error, _error} = Worker.start_link(id: "absent", cmd: ["no-such-program"])
    late = [ready: {:output, "never"}, ready_timeout: 100]
    {:error, _error} = Worker.start_link([id: "late", cmd: sh("echo so far; sleep 600")] ++ late)

    events =
      eventually(fn ->
        with [_, _ | _] = events <- overview(base)["events"], do: events, else: (_ -> nil)
      end)

    assert %{"kind" => "failed", "level" => "bad"} = absent = event(events, "absent")
    assert absent["text"] =~ "no-such-program"
    assert %{"kind" => "ended", "level" => "bad"} = late = event(events, "late")
    assert late["text"] =~ "100 ms"
  end

  defp event(events, id), do: Enum.find(events, &(&1["worker"] == id))

  test "keeps so many events, the newest" do
    _base = serve()
    metadata = %{worker_id: "w", reason: :normal, os_pid: 1, output_tail: nil}

    end_one = fn n ->
      Feed.record([:snakepit, :process, :terminated], %{uptime_ms: n}, metadata)
    end

    Enum.each(1..1_000, end_one)
    assert length(Feed.events()) == 200
    assert hd(Feed.events()).text =~ "stopped after 1.0 s"
    # Nobody who emits an event is hurt by one that is new to the dashboard, or broken.
    assert Feed.record([:snakepit, :process, :new], %{}, %{}) == :ok
    assert Feed.record([:snakepit, :process, :started], %{}, %{}) == :ok
  end

  test "heartbeats have their latency, and what is no worker is shown and not asked" do
    base = serve()
    cmd = ["python3", fixture("lifeline.py")]
    beat = [ping_interval: 50]
    {:ok, worker} = Worker.start_link(id: "beats", cmd: cmd, heartbeat: beat, ready: :heartbeat)

    row =
      eventually(fn ->
        with %{"latency_ms" => ms} = row when is_integer(ms) <- row(base, "beats"),
             do: row,
             else: (_ -> nil)
      end)

    assert row["heartbeat"] == "healthy"

    assert %{"status" => "healthy", "pongs_received" => pongs} =
             detail(base, "beats")["heartbeat"]

    assert pongs > 0
    assert overview(base)["total"]["healthy"] == 1
    Worker.stop(worker)

    {:ok, child} = Workers.start("by hand", ["sleep", "600"])
    assert %{"kind" => "other"} = eventually(fn -> row(base, "by hand") end)
    assert detail(base, "by hand")["output"] == nil
    assert Process.info(child.owner, :message_queue_len) == {:message_queue_len, 0}
    Workers.stop(child)
  end

  test "a pool with its queue, and its workers as its own" do
    base = serve()
    worker = [cmd: ["cat"], stdio: :pipe, packet: :line]
    {:ok, pool} = Pool.start_link(name: MyApp.Shown, size: 1, worker: worker)
    :ok = Pool.await_ready(pool)
    test = self()

    hold = fn _worker ->
      send(test, :held)
      receive(do: (:go -> :ok))
    end

    holder = spawn_link(fn -> Pool.with_worker(pool, hold) end)
    assert_receive :held
    waiter = spawn_link(fn -> Pool.with_worker(pool, fn _ -> :ok end) end)
    eventually(fn -> match?([%{"queued" => 1}], overview(base)["pools"]) end)
    assert [%{"id" => "MyApp.Shown", "busy" => 1, "size" => 1}] = overview(base)["pools"]
    assert row(base, "MyApp.Shown-1")["pool"] == "MyApp.Shown"
    monitors = for pid <- [holder, waiter], do: Process.monitor(pid)
    send(holder, :go)
    for monitor <- monitors, do: assert_receive({:DOWN, ^monitor, _, _, :normal})
    GenServer.stop(pool)
  end

  test "the page and what belongs to it, and nothing else" do
    base = serve()
    assert {200, headers, page} = HTTP.get(base)
    assert headers["content-security-policy"] =~ "default-src 'none'"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"

    for [_all, file] <- Regex.scan(~r/(?:src|href)="([a-z.]+)"/, page) do
      assert {200, %{"etag" => etag}, content} = HTTP.get(base <> file)
      assert byte_size(content) > 100
      # Nothing from elsewhere.
      assert Regex.scan(~r{(?:https?:)?//[a-z][^\s"')]+}, content) --
               [["http://www.w3.org/2000/svg"]] == []

      assert {304, _headers, ""} = HTTP.get(base <> file, [{"if-none-match", etag}])
    end

    assert {200, %{"content-length" => length}, ""} = HTTP.get(base, [], :head)
    assert String.to_integer(length) == byte_size(page)

    for path <- ["x", "api", "api/x", "../mix.exs", "app.js/x", "%2e%2e/mix.exs"],
        do: assert({404, _headers, _body} = HTTP.get(base <> path))

    from_page = [{"x-snakepit-dashboard", "1"}]

    for path <- ["", "api/overview"],
        do: assert({404, _headers, _body} = HTTP.post(base <> path, [], from_page))
  end

  test "a stranger sees nothing without the token, and nobody by another name" do
    base = serve(token: @token)
    assert Dashboard.url() == base <> "?token=" <> @token

    for path <- ["", "app.js", "api/overview", "api/worker?id=x", "api/runs", "?token=wrong", "x"] do
      assert {401, _headers, body} = HTTP.get(base <> path)
      refute body =~ "Workers"
      refute body =~ Snakepit.run_id()
    end

    assert {200, %{"set-cookie" => cookie}, _page} = HTTP.get(base <> "?token=" <> @token)
    [cookie | _attributes] = String.split(cookie, ";")
    assert {200, headers, _body} = HTTP.get(base <> "api/overview", [{"cookie", cookie}])
    refute Map.has_key?(headers, "set-cookie")
    bearer = [{"authorization", "Bearer " <> @token}]
    assert HTTP.json(base <> "api/overview", bearer)["run"]["id"] == Snakepit.run_id()
    elsewhere = [{"host", "evil.example"} | bearer]
    assert {403, _headers, _body} = HTTP.get(base <> "api/overview", elsewhere)
  end

  test "where others can reach it, and where it acts, there is a token in any case" do
    base = serve(ip: {0, 0, 0, 0})
    assert "token=" <> token = URI.parse(Dashboard.url()).query
    assert byte_size(token) >= 24
    port = URI.parse(base).port
    assert {401, _headers, _body} = HTTP.get("http://127.0.0.1:#{port}/")
    assert {200, _headers, _body} = HTTP.get("http://127.0.0.1:#{port}/?token=#{token}")
    :ok = stop_supervised(Dashboard)
    serve(actions: [:stop])
    assert Dashboard.url() =~ "?token="
    refute Dashboard.url() =~ token
  end

  test "nothing of it is left when it has ended, and one runs at a time" do
    before = Process.list()
    refute :ets.whereis(Feed) != :undefined
    assert Dashboard.url() == nil
    base = serve()
    assert {:error, {:already_started, _pid}} = Dashboard.start_link(port: 0)
    overview(base)
    :ok = stop_supervised(Dashboard)
    assert :ets.whereis(Feed) == :undefined
    # Neither of the page nor of the web server; the client's processes are its own.
    names =
      for pid <- Process.list() -- before,
          do: inspect(Process.info(pid, [:registered_name, :dictionary]))

    refute Enum.any?(names, &(&1 =~ "Dashboard" or &1 =~ "WebServer"))
    assert {:error, %Error{reason: :eaddrinuse}} = taken_port()
  end

  test "goes on when a part of it fails, and takes nobody along when it cannot" do
    children = [{Dashboard, port: 0}]
    {:ok, above} = Supervisor.start_link(children, strategy: :one_for_one, max_restarts: 0)
    fail = fn -> Process.exit(Process.whereis(Dashboard.Collector), :kill) end
    before = Process.whereis(Dashboard.Collector)
    fail.()
    eventually(fn -> Process.whereis(Dashboard.Collector) not in [nil, before] end)
    assert overview(Dashboard.url())["run"]["id"] == Snakepit.run_id()

    eventually(fn ->
      if Process.whereis(Dashboard.Collector), do: fail.()
      Process.whereis(Dashboard) == nil
    end)

    assert Process.alive?(above)
    assert Supervisor.which_children(above) == []
    Supervisor.stop(above)
  end

  test "nonsense is refused, and the next one is served" do
    base = serve()
    port = URI.parse(base).port
    host = "Host: localhost\r\n"

    for {sent, most} <- [
          {"\r\n\r\n", 599},
          {"GET\r\n\r\n", 599},
          {:rand.bytes(500) <> "\r\n\r\n", 599},
          {"GET /%zz%00?token=%zz HTTP/1.1\r\n#{host}\r\n", 499},
          {"GET /api/worker?id=%ff%fe HTTP/1.1\r\n#{host}\r\n", 200},
          {"GET / HTTP/1.1\r\n#{host}Cookie: \xFF\xFE\r\n\r\n", 499},
          {"GET / HTTP/1.0\r\n\r\n", 499},
          {"GET /#{String.duplicate("x", 100_000)} HTTP/1.1\r\n#{host}\r\n", 499},
          {"POST /api/actions/stop HTTP/1.1\r\n#{host}Content-Length: 100000000\r\n\r\n", 499}
        ] do
      {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
      :ok = :gen_tcp.send(socket, sent)

      with {:ok, "HTTP/1." <> <<_minor, " ", status::binary-size(3)>> <> _rest} <-
             :gen_tcp.recv(socket, 0, 5_000),
           do: assert(String.to_integer(status) <= most, inspect(String.slice(sent, 0, 60)))

      :gen_tcp.close(socket)
      assert overview(base)["run"]["id"] == Snakepit.run_id()
    end
  end

  defp taken_port do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)

    {:error, {:shutdown, {:failed_to_start_child, _server, error}}} =
      Dashboard.start_link(port: port)

    {:error, error}
  end

  test "options are checked before anything starts" do
    for {options, message} <- [
          {[token: "short"], ~r/expected :token to be a text of at least 16/},
          {[actions: [:explode]], ~r/expected :actions/},
          {[ip: "::1"], ~r/expected :ip to be an IP address/},
          {[hosts: "x"], ~r/expected :hosts/},
          {[prot: 1], ~r/did you mean :port/}
        ],
        do: assert_raise(ArgumentError, message, fn -> Dashboard.start_link(options) end)
  end

  test "has what the doctor says of this place" do
    base = serve()
    checks = HTTP.json(base <> "api/place")["checks"]

    assert %{"level" => "fine", "found" => "Linux " <> _} =
             Enum.find(checks, &(&1["check"] == "kernel"))

    for check <- checks, do: assert(check["level"] in ~w(fine note weaker broken))
  end

  test "the history has the timeline of a crash, also where Snakepit is not started" do
    data_dir = Beam.temporary_directory()
    run_id = Crash.leave(data_dir)
    beam = Beam.start(data_dir: data_dir)

    {:ok, _pid} =
      Beam.run(
        beam,
        "Supervisor.start_link([{Snakepit.Dashboard, port: 0}], strategy: :one_for_one)"
      )

    base = Beam.run(beam, "Snakepit.Dashboard.url()")
    assert_crash(base, run_id)
    assert {404, _headers, _body} = HTTP.get(base <> "api/run?id=zzzzzzz")
    assert {404, _headers, _body} = HTTP.get(base <> "api/run?id=../../etc")

    # Stopped beside it: the page goes on with what the disk has.
    :ok =
      Beam.run(
        beam,
        "Application.put_env(:snakepit, :data_dir, #{inspect(data_dir)}) && Application.stop(:snakepit)"
      )

    eventually(fn -> overview(base)["run"] == nil end)
    assert %{"workers" => [], "guardian" => nil} = overview(base)
    assert_crash(base, run_id)
    assert detail(base, "stubborn")["state"] == "gone"
    {:ok, _started} = Beam.run(beam, "Application.ensure_all_started(:snakepit)")
    eventually(fn -> overview(base)["run"] != nil end)
  end

  defp assert_crash(base, run_id) do
    runs = HTTP.json(base <> "api/runs")["runs"]
    assert %{"terminated_by" => "guardian"} = Enum.find(runs, &(&1["run_id"] == run_id))
    assert %{"timeline" => timeline} = HTTP.json(base <> "api/run?id=" <> run_id)
    assert timeline["survivors"] == []
    assert Enum.any?(timeline["processes"], &(&1["worker_id"] == "stubborn" and &1["killed"]))
    assert timeline["detected_by"] in ~w(pidfd port thread)
  end
end
