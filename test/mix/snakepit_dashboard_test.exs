defmodule Mix.Tasks.Snakepit.DashboardTest do
  # The task, as people run it: a BEAM of its own.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Beam, HTTP}

  @moduletag timeout: 120_000

  # Returns the URL that it says.
  defp start(arguments, env \\ %{}) do
    {:ok, worker} =
      Worker.start_link(
        cmd: ["mix", "snakepit.dashboard", "--port", "0" | arguments],
        env: env,
        ready: {:output, "Snakepit's dashboard: http"},
        ready_timeout: 100_000
      )

    {:ok, said} = Worker.output_tail(worker)
    [_all, url] = Regex.run(~r/Snakepit's dashboard: (\S+)/, said)
    {worker, url}
  end

  defp run(arguments),
    do: System.cmd("mix", ["snakepit.dashboard" | arguments], stderr_to_stdout: true)

  test "starts the project, with a dashboard that has what was asked for" do
    {worker, url} =
      start(["--actions", "stop"], %{"SNAKEPIT_DATA_DIR" => Beam.temporary_directory()})

    [base, query] = String.split(url, "?")
    assert {401, _headers, _body} = HTTP.get(base)
    overview = HTTP.json("#{base}api/overview?#{query}")
    assert overview["run"]["state"] == "running"
    assert overview["actions"] == ["stop"]
    Worker.stop(worker)
  end

  test "shows the history of a directory, and starts nothing" do
    data_dir = Beam.temporary_directory()
    lost = Beam.start(data_dir: data_dir)
    run_id = Beam.run(lost, "Snakepit.run_id()")
    Beam.run(lost, "Application.stop(:snakepit)")
    {worker, base} = start(["--data-dir", data_dir])
    assert %{"run" => nil, "workers" => []} = HTTP.json(base <> "api/overview")
    assert %{"data_dir" => ^data_dir, "runs" => [run]} = HTTP.json(base <> "api/runs")
    assert %{"run_id" => ^run_id, "terminated_by" => "clean_shutdown"} = run
    # A run of its own would be there.
    assert Beam.run_ids(data_dir) == [run_id]
    Worker.stop(worker)
  end

  test "says what is wrong with its arguments" do
    for {arguments, sentence} <- [
          {["--prot", "1"], "does not know --prot"},
          {["--ip", "localhost"], "--ip has to be an IP address"},
          {["--data-dir", "/tmp", "--actions", "explode"], "expected :actions to be"},
          {["--data-dir", "/tmp", "--port", "80000"], "expected :port to be"}
        ] do
      assert {said, 1} = run(arguments)
      assert said =~ sentence
    end
  end
end
