defmodule Snakepit.Dashboard.ActionsTest do
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.{Dashboard, Pool}
  alias Snakepit.Test.HTTP

  @token "a-token-of-the-tests"
  @from_page [{"x-snakepit-dashboard", "1"}]

  # Returns its URL without token and query.
  defp serve(options \\ []) do
    start_supervised!({Dashboard, [port: 0] ++ options})
    Dashboard.url() |> String.split("?") |> hd()
  end

  defp act(base, action, form, headers \\ @from_page) do
    {status, _headers, body} = HTTP.post(base <> "api/actions/#{action}", form, headers)
    {status, body}
  end

  test "does nothing that is not allowed, not confirmed, or not from the page" do
    base = serve()
    {:ok, worker} = Worker.start_link(id: "stays", cmd: ["sleep", "600"])
    os_pid = Worker.os_pid!(worker)
    form = [id: "stays", confirm: "stays", signal: "SIGKILL", min: 1, max: 1]

    for action <- ~w(stop restart signal resize),
        do:
          assert(
            {403, "{\"error\":\"this dashboard does not allow it" <> _} = act(base, action, form)
          )

    :ok = stop_supervised(Dashboard)
    base = serve(actions: [:stop, :signal], token: @token)
    page = [{"authorization", "Bearer " <> @token} | @from_page]
    assert {403, _} = act(base, "restart", form, page)
    assert {401, _} = act(base, "stop", form)
    assert {403, _} = act(base, "stop", form, List.delete(page, hd(@from_page)))
    assert {403, _} = act(base, "stop", form, [{"origin", "http://evil.example"} | page])

    for confirm <- ["", "Stays", "stay"],
        do: assert({400, _} = act(base, "stop", [id: "stays", confirm: confirm], page))

    assert {400, _} = act(base, "signal", [id: "stays", confirm: "stays", signal: "KILL"], page)
    assert {404, _} = act(base, "stop", [id: "nobody", confirm: "nobody"], page)
    assert {404, _} = act(base, "explode", form, page)
    assert ProcScan.running?(ProcScan.stat(os_pid))
    assert Worker.os_pid!(worker) == os_pid
    Worker.stop(worker)
  end

  test "stops, restarts and signals a worker, whoever supervises it" do
    base = serve(actions: true, token: @token)
    page = [{"authorization", "Bearer " <> @token} | @from_page]
    do_it = fn action, id, more -> act(base, action, [id: id, confirm: id] ++ more, page) end

    child = Supervisor.child_spec({Worker, id: "child", cmd: ["sleep", "600"]}, id: :child)
    {:ok, supervisor} = Supervisor.start_link([child], strategy: :one_for_one)
    [{:child, first, _type, _modules}] = Supervisor.which_children(supervisor)
    assert {200, _} = do_it.("restart", "child", [])
    [{:child, second, _type, _modules}] = Supervisor.which_children(supervisor)
    assert is_pid(second) and second != first
    {:ok, os_pid} = Worker.os_pid(second)
    assert {200, _} = do_it.("stop", "child", [])
    assert [{:child, :undefined, _type, _modules}] = Supervisor.which_children(supervisor)
    assert ProcScan.stat(os_pid) == nil

    {:ok, dynamic} = DynamicSupervisor.start_link(strategy: :one_for_one)
    options = [id: "dynamic", cmd: ["sleep", "600"]]
    {:ok, first} = DynamicSupervisor.start_child(dynamic, {Worker, options})
    assert {200, _} = do_it.("restart", "dynamic", [])

    pid =
      eventually(fn ->
        for(
          {_, pid, _, _} when pid != first and is_pid(pid) <-
            DynamicSupervisor.which_children(dynamic),
          do: pid
        )
        |> List.first()
      end)

    eventually(fn -> match?({:ok, _}, Worker.os_pid(pid)) end)
    assert {200, _} = do_it.("stop", "dynamic", [])
    assert DynamicSupervisor.which_children(dynamic) == []

    {:ok, alone} =
      Worker.start_link(
        id: "alone",
        cmd: bash("trap 'echo got it' HUP; echo up; while :; do sleep 0.1; done"),
        ready: {:output, "up"}
      )

    assert {200, _} = do_it.("signal", "alone", signal: "SIGHUP")
    # The shell may also report its own child, which has got it too.
    eventually(fn -> elem(Worker.output_tail(alone), 1) =~ "got it\n" end)

    eventually(fn ->
      match?(%{"kind" => "action"}, hd(HTTP.json(base <> "api/overview", page)["events"]))
    end)
  end

  test "resizes a pool and replaces its workers, which are not stopped alone" do
    base = serve(actions: true, token: @token)
    page = [{"authorization", "Bearer " <> @token} | @from_page]
    worker = [cmd: ["cat"], stdio: :pipe, packet: :line]
    {:ok, pool} = Pool.start_link(name: MyApp.Resized, size: 1, worker: worker)
    :ok = Pool.await_ready(pool)

    resize = fn min, max ->
      act(
        base,
        "resize",
        [id: "MyApp.Resized", confirm: "MyApp.Resized", min: min, max: max],
        page
      )
    end

    assert {200, _} = resize.(2, 2)
    eventually(fn -> Pool.info(pool).idle == 2 end)

    for {min, max} <- [{3, 2}, {0, 0}, {-1, 1}, {1, 1_000_000}, {"a", 1}],
        do: assert({400, _} = resize.(min, max))

    {:ok, before} = ProcessRegistry.get_worker_info("MyApp.Resized-1")
    target = [id: "MyApp.Resized-1", confirm: "MyApp.Resized-1"]
    assert {409, _} = act(base, "stop", target, page)
    assert {200, _} = act(base, "restart", target, page)
    gone? = fn -> before.os_pid not in for(one <- Pool.list_workers(pool), do: one.os_pid) end
    eventually(fn -> gone?.() and Pool.info(pool).idle == 2 end)
    GenServer.stop(pool)
  end
end
