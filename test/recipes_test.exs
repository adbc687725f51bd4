defmodule Snakepit.RecipesTest do
  # What guides/recipes.md and usage-rules.md say. Programs of examples are run by examples_test.
  use Snakepit.Test.WorkerCase, async: false

  import Snakepit.Test.Snippets

  @root Path.expand("..", __DIR__)
  @recipes Path.join(@root, "examples/recipes")
  @systemd System.find_executable("systemd-analyze")
  @yaml match?(
          {_, 0},
          System.cmd("/usr/bin/env", ["/usr/bin/python3", "-c", "import yaml"],
            stderr_to_stdout: true
          )
        )

  test "every snippet is taken from a file, and every file is shown or linked" do
    page = page("guides/recipes.md")
    paths = assert_taken_from_files(page)
    assert languages_without_file(page) -- ["console"] == []
    links = assert_links(page, "guides")

    for name <- File.ls!(@recipes), name != "mcp_server.py" do
      path = "examples/recipes/#{name}"
      assert path in paths or "../#{path}" in links, path
    end
  end

  test "the rules show only what is run, and name only what there is" do
    page = page("usage-rules.md")
    assert page |> assert_taken_from_files() |> Enum.uniq() == ["examples/usage_rules.exs"]
    assert languages_without_file(page) == []
    named = Regex.scan(~r/`(Snakepit[.\w]*)\.([a-z_]+[!?]?)\/(\d)`/, page)
    assert length(named) > 5

    for [_, module, function, arity] <- named do
      module = Module.concat([module])
      assert Code.ensure_loaded?(module)
      assert {String.to_atom(function), String.to_integer(arity)} in module.__info__(:functions)
    end
  end

  # What systemd does not understand it ignores, with status 0.
  @tag skip: if(@systemd, do: false, else: "there is no systemd-analyze (script/bootstrap --all)")
  test "systemd has nothing to say of the unit" do
    assert verdict(unit()) == ""
    assert verdict(String.replace(unit(), "WatchdogSec", "WatchdogSecs")) =~ "WatchdogSecs"
  end

  # The user and the release of the recipe are not on this machine.
  defp unit do
    File.read!(Path.join(@recipes, "my_app.service"))
    |> String.replace("/opt/my_app/bin/my_app", System.find_executable("true"))
    |> String.replace("User=my_app", "User=root")
  end

  defp verdict(unit) do
    directory = temporary_path("unit")
    File.mkdir_p!(directory)
    path = Path.join(directory, "my_app.service")
    File.write!(path, unit)
    {said, _status} = System.cmd(@systemd, ["verify", path], stderr_to_stdout: true)
    said
  end

  @tag skip: if(@yaml, do: false, else: "there is no python3-yaml (script/bootstrap --all)")
  test "the Deployment is one, and is what the guide says of it" do
    code =
      "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"

    path = Path.join(@recipes, "kubernetes.yaml")
    {json, 0} = System.cmd("/usr/bin/python3", ["-c", code, path])
    [deployment] = Snakepit.Bench.JSON.decode!(json)
    assert %{"apiVersion" => "apps/v1", "kind" => "Deployment"} = deployment

    %{"selector" => selector, "template" => %{"metadata" => metadata, "spec" => pod}} =
      deployment["spec"]

    assert selector["matchLabels"] == metadata["labels"]
    [container] = pod["containers"]

    ports = for %{"name" => name} <- container["ports"], do: name

    code =
      Code.string_to_quoted!(File.read!(Path.join(@recipes, "health.ex"))) |> Macro.to_string()

    for probe <- ["startupProbe", "livenessProbe", "readinessProbe"] do
      assert %{"path" => path, "port" => port} = container[probe]["httpGet"]
      assert port in ports
      assert code =~ ~s|status("#{path}")|
    end

    refute container["livenessProbe"]["httpGet"]["path"] ==
             container["readinessProbe"]["httpGet"]["path"]

    # Each directory that is written to is a volume of its own.
    mounts =
      for %{"name" => name, "mountPath" => path} <- container["volumeMounts"], do: {path, name}

    volumes = for %{"name" => name, "emptyDir" => %{}} <- pod["volumes"], do: name

    env =
      for %{"name" => name, "value" => value} <- container["env"], into: %{}, do: {name, value}

    for name <- ["SNAKEPIT_DATA_DIR", "RELEASE_TMP"] do
      assert {_path, volume} = List.keyfind(mounts, env[name], 0)
      assert volume in volumes
    end
  end

  test "the stages of the Dockerfile fit together, and the release is pid 1" do
    text = File.read!(Path.join(@recipes, "Dockerfile"))
    lines = text |> String.replace("\\\n", " ") |> String.split("\n", trim: true)

    steps =
      for line <- lines, not String.starts_with?(line, "#"), do: String.split(line, " ", parts: 2)

    known = ~w(FROM RUN ENV WORKDIR COPY VOLUME USER ENTRYPOINT CMD)
    for [instruction, _rest] <- steps, do: assert(instruction in known)

    assert ["elixir:1.18 AS build", "debian:bookworm-slim"] =
             for(["FROM", image] <- steps, do: image)

    [copied] = for(["COPY", "--from=build " <> paths] <- steps, do: paths)
    assert copied == "/app /app"
    assert ["RUN", "mix release --path /app"] in steps
    # The exec form is JSON.
    assert ["ENTRYPOINT", ~s(["/app/bin/my_app"])] in steps
    assert ["CMD", ~s(["start"])] in steps
    [environment] = for ["ENV", "LANG" <> _ = rest] <- steps, do: rest
    assert environment =~ "SNAKEPIT_DATA_DIR=/data" and ["VOLUME", "/data"] in steps
    # As `sh -c` would see it.
    for ["RUN", script] <- steps, do: assert({_said, 0} = System.cmd("sh", ["-n", "-c", script]))
  end

  test "the probes: alive as long as the BEAM answers, ready when a worker is" do
    [{health, _code}] = Code.compile_file(Path.join(@recipes, "health.ex"))
    status = &apply(health, :status, [&1])
    assert {status.("/alive"), status.("/ready")} == {200, 503}

    cat = [cmd: ["cat"], stdio: :pipe, packet: :line]
    {:ok, pool} = Snakepit.Pool.start_link(name: MyApp.Pool, size: 1, worker: cat)
    :ok = Snakepit.Pool.await_ready(pool, 20_000)
    assert status.("/ready") == 200
    # In use is ready too.
    Snakepit.Pool.with_worker(pool, fn _worker -> assert status.("/ready") == 200 end)
    GenServer.stop(pool)
    assert {status.("/alive"), status.("/ready")} == {200, 503}

    broken = [cmd: ["no-such-program"]]
    {:ok, pool} = Snakepit.Pool.start_link(name: MyApp.Pool, size: 1, worker: broken)
    assert {status.("/alive"), status.("/ready")} == {200, 503}
    GenServer.stop(pool)
  end

  describe "a server of the Model Context Protocol" do
    setup do
      Code.require_file("fixtures/json.exs", __DIR__)
      [{client, _code}] = Code.compile_file(Path.join(@recipes, "mcp_client.ex"))

      on_exit(fn ->
        :code.purge(client)
        :code.delete(client)
      end)

      server = [cmd: ["python3", Path.join(@recipes, "mcp_server.py")]]
      {:ok, client: client, server: server}
    end

    test "answers by id, between notifications, to many callers", %{
      client: client,
      server: server
    } do
      start_supervised!({client, server ++ [name: MyApp.Files]})
      call = &apply(client, :call, [MyApp.Files, &1, &2])

      answers =
        1..20
        |> Task.async_stream(fn number ->
          text = String.duplicate("word ", number)
          {number, call.("tools/call", %{name: "count", arguments: %{text: text}})}
        end)
        |> Enum.map(fn {:ok, answer} -> answer end)

      for {number, answer} <- answers do
        assert {:ok, %{"content" => [%{"text" => text}]}} = answer
        assert text == "#{number}"
      end

      assert {:error, %{"code" => -32_601, "message" => "no method nonsense"}} =
               call.("nonsense", %{of: "ours"})
    end

    test "ends with its client, and what it has started too", %{client: client, server: server} do
      supervisor = start_supervised!({client, server ++ [name: MyApp.Files]})
      {:ok, %{"pid" => helper}} = apply(client, :call, [MyApp.Files, "helper", %{of: "its"}])
      assert ProcScan.running?(helper)
      Process.exit(supervisor, :kill)
      assert eventually(fn -> not ProcScan.running?(helper) end)
      # The supervisor has started both again.
      assert eventually(fn ->
               pid = Process.whereis(MyApp.Files)
               is_pid(pid) and pid != supervisor
             end)
    end
  end
end
