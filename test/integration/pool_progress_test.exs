defmodule Snakepit.PoolProgressTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.Beam

  @moduletag :long
  @moduletag timeout: 120_000

  @terminal Path.expand("../fixtures/under_a_terminal.py", __DIR__)

  test "a pool that takes long says on the terminal how far it is" do
    directory = Beam.temporary_directory()
    go = Path.join(directory, "go")
    port = start(directory, library_mode: false, worker: waits_for(go))
    # Shown again and again while the second is not ready.
    seen = await(port, "\rSnakepit: 0 of 2 workers are ready\rSnakepit: 0 of 2 workers are ready")
    File.touch!(go)
    # The rest may come in one piece.
    seen = await(port, "\rSnakepit: 2 of 2 workers are ready\r\n", seen)
    await(port, "started", seen)
    assert_receive {^port, {:exit_status, 0}}, 20_000
  end

  test "one that is stopped before it is ready leaves the line to others" do
    directory = Beam.temporary_directory()
    port = start(directory, library_mode: false, worker: ["cat"], patience_ms: 4_000)
    await(port, "Snakepit: 0 of 2 workers are ready\r\nstarted")
    assert_receive {^port, {:exit_status, 0}}, 20_000
  end

  test "one in somebody else's program says nothing" do
    directory = Beam.temporary_directory()
    go = Path.join(directory, "go")
    port = start(directory, library_mode: true, worker: waits_for(go))
    await(port, "about to start")
    # Twice as long as it would wait before it says something.
    refute_receive {^port, {:data, _anything}}, 2_000
    File.touch!(go)
    refute await(port, "started") =~ "workers are ready"
    assert_receive {^port, {:exit_status, 0}}, 20_000
  end

  defp waits_for(path),
    do: ["sh", "-c", ~s(until [ -e "$1" ]; do sleep 0.05; done; echo ready; exec cat), "sh", path]

  defp start(directory, opts) do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(Path.join(directory, "data"))})
    Application.put_env(:snakepit, :library_mode, #{opts[:library_mode]})
    {:ok, _} = Application.ensure_all_started(:snakepit)
    # That a worker was told to stop before it was ready, which is no failure.
    Logger.configure(level: :info)
    worker = [cmd: #{inspect(opts[:worker])}, ready: {:output, "ready"}, stdio: :pipe]
    # Where the pool writes, so that all of it comes in the order in which it was written.
    IO.puts(:stderr, "about to " <> "start")
    {:ok, pool} = Snakepit.Pool.start_link(size: 2, worker: worker)
    Snakepit.Pool.await_ready(pool, #{opts[:patience_ms] || 20_000})
    :ok = GenServer.stop(pool)
    IO.puts(:stderr, "start" <> "ed")
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    arguments = [@terminal, "elixir", "-pa", ebin, "-e", code]
    options = [:binary, :exit_status, args: arguments, env: [{~c"TERM", ~c"dumb"}]]
    Port.open({:spawn_executable, System.find_executable("python3")}, options)
  end

  # What was said up to then.
  defp await(port, text, seen \\ "") do
    if String.contains?(seen, text) do
      seen
    else
      receive do
        {^port, {:data, data}} -> await(port, text, seen <> data)
        {^port, {:exit_status, status}} -> flunk("it ended with #{status}: #{inspect(seen)}")
      after
        20_000 -> flunk("no #{inspect(text)} in: #{inspect(seen)}")
      end
    end
  end
end
