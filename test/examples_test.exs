defmodule Snakepit.ExamplesTest do
  # Each example as a user would run it, in a BEAM of its own.
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, GRPC}

  @examples Path.expand("../examples", __DIR__)
  @moduletag :long
  @moduletag timeout: 120_000

  defp run(name, env \\ []) do
    directory = Beam.temporary_directory()
    configure = "Application.put_env(:snakepit, :data_dir, #{inspect(directory)})"
    run(name, env, configure, "Snakepit.Test.assert_no_orphans(timeout: 0)")
  end

  defp run(name, env, configure, finish) do
    code = """
    #{configure}
    {:ok, _} = Application.ensure_all_started(:snakepit)
    Code.eval_file(#{inspect(Path.join(@examples, name))})
    #{finish}
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    options = [stderr_to_stdout: true, env: env]
    {output, status} = System.cmd("elixir", ["-pa", ebin, "-e", code], options)
    assert status == 0, output
    output
  end

  test "a Python script under supervision" do
    assert run("supervised.exs") =~ "alive: true\nalive: false\n"
  end

  test "a pool of Python workers that compute" do
    output = run("python_worker.exs")
    assert output =~ "2024 = 2 * 2 * 2 * 11 * 23\n"
    assert output =~ "2027 = 2027\n"
    assert output =~ "2031 = 3 * 677\n"
  end

  test "a worker in Node" do
    output = run("node_worker.exs")

    if System.find_executable("node") do
      assert output =~ ~s({"sorted":["apple","fig","pear"]}\n)
      assert output =~ "health: healthy\n"
    else
      assert output =~ "skipped: node"
    end
  end

  test "a plain shell program" do
    output = run("shell_program.exs")
    assert output =~ ~r/^ready, and so is my child \d+$/m
    assert output =~ "tick 3\n"
    assert output =~ "3\n2\n1\n"
    assert output =~ "left behind: 0\n"
  end

  test "a dashboard and its API" do
    output = run("dashboard.exs")
    assert output =~ ~r"^open http://127.0.0.1:\d+/\?token=only-for-this-example$"m
    assert output =~ "has the worker: true\nhas its tree: true\n"
    assert output =~ ~s({"done":"stopped"}\n)
  end

  test "what the guide of operation shows" do
    output = run("operation.exs")
    assert output =~ "ready: listening\nit runs: true\n"
    assert output =~ "left behind: 0\n"
  end

  test "what the rules for assistants show" do
    output = run("usage_rules.exs")
    assert output =~ ~s(message: spawn failed: cannot execute "no-such-program")
    assert output =~ "left behind: 0\n"
  end

  @chrome Enum.any?(~w(chromium google-chrome chrome), &System.find_executable/1)
  @tag skip: if(@chrome, do: false, else: "there is no Chrome (script/bootstrap --all)")
  test "Chrome prints a page, and stays for others" do
    output = run("recipes/chrome.exs")
    assert output =~ "a PDF: true\nseveral processes: true\nleft behind: 0\n"
  end

  @ffmpeg System.find_executable("ffmpeg")
  @tag skip: if(@ffmpeg, do: false, else: "there is no ffmpeg (script/bootstrap --all)")
  test "ffmpeg tells its progress, and finishes its file" do
    output = run("recipes/ffmpeg.exs")
    assert output =~ "converted: true\nrecorded: \"mov,mp4,"
    assert output =~ "left behind: 0\n"
  end

  test "a person's dialogue with an interpreter at a terminal" do
    output = run("terminal.exs")
    assert output =~ "it can count: 42\n"
    assert output =~ "interrupted: true\n"
    assert output =~ "rows and columns: 50 132\n"
  end

  test "what other libraries do" do
    output = run("switching.exs")
    assert output =~ "2\n1\nLINE 1\nLINE 2\nLINE 3\n"
    assert output =~ "hello Robert, your terminal has 30 100\r\n"
    assert output =~ "left behind: 0\n"
  end

  test "programs that read what others write" do
    output = run("pipeline.exs")
    assert output =~ ~s(the first numbers with two nines: ["99\\n", "199\\n", "299\\n"])
    assert output =~ "how many there are: 45739\nleft behind: 0\n"
  end

  test "metrics as Prometheus reads them" do
    output = run("monitoring.exs")
    assert output =~ ~s(snakepit_workers{group="MyApp.Nap"} 2\n)
    assert output =~ ~s(snakepit_process_starts_total{group="MyApp.Nap"} 2\n)
  end

  test "a Python worker that answers many requests in any order" do
    {waited, ["left behind: 0"]} =
      run("duplex_worker.exs") |> String.split("\n", trim: true) |> Enum.split(3)

    assert Enum.sort(waited) == for(time <- [100, 500, 900], do: "waited for #{time} ms")
  end

  test "a gRPC service of ten lines" do
    output = run("grpc_service.exs", [{"SNAKEPIT_EXAMPLE_PYTHON", GRPC.python()}])

    if GRPC.skip() do
      assert output =~ "skipped: grpcio"
    else
      assert output =~ "part 0\npart 1\npart 2\n"
      assert output =~ ~s(exception: "ping" raised TypeError: ping\(\) got an unexpected keyword)
      assert output =~ "answers: 1\n"
    end
  end

  @tag skip: GRPC.skip()
  test "an application of the earlier Snakepit" do
    config = Path.join(@examples, "migrating/config.exs")

    env = [
      {"SNAKEPIT_EXAMPLE_PYTHON", GRPC.python()},
      {"SNAKEPIT_DATA_DIR", Beam.temporary_directory()}
    ]

    configure = "Application.put_all_env(Config.Reader.read!(#{inspect(config)}))"
    # Its pool is Snakepit's own.
    output = run("migrating/calls.exs", env, configure, ":ok = Application.stop(:snakepit)")
    assert output =~ "epoch 1\nepoch 2\n"
    assert output =~ "workers: :default-1, :default-2\n"
    assert output =~ "length: 5\n"
  end
end
