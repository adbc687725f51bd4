defmodule DashboardScene do
  # What is on the pictures of the dashboard: an application as people have them. `script/screenshots` starts it in a BEAM of
  # its own.

  alias Snakepit.{Dashboard, Pool, Worker}

  # Not the one that a version manager puts first, whose path would be on the pictures.
  @python "/usr/bin/python3"

  @transcoder """
  import math, time
  kept, frame = [], 0
  while True:
      begun = time.process_time()
      share = 0.25 + 0.18 * math.sin(time.time() / 5)
      while time.process_time() - begun < share * 0.25:
          pass
      kept = kept[-24:] + [bytearray(1 << 20)] if frame % 60 < 40 else kept[1:]
      frame += 7
      print(f"frame={frame:6d} fps={26 + 4 * math.sin(frame):.1f} size={frame * 3} KiB speed=1.02x", flush=True)
      time.sleep((1 - share) * 0.25)
  """

  @reports """
  import sys, time
  time.sleep(9)
  sys.exit("reports: the database refused the connection")
  """

  @doc "Starts the application in a directory that has the programs of the tests. Returns the URL of its dashboard."
  def start(fixtures) do
    for name <- ~w(lifeline squares),
        do: File.cp!(Path.join(fixtures, name <> ".py"), name <> ".py")

    File.write!("transcode.py", @transcoder)
    File.write!("reports.py", @reports)
    {:ok, _pid} = Dashboard.start_link(port: 0, actions: true)
    asker = self()
    spawn(fn -> stay(asker) end)
    receive(do: (:started -> Dashboard.url()))
  end

  defp stay(asker) do
    specifications = for {id, options} <- workers(), do: specification(id, options)

    {:ok, _pid} =
      Supervisor.start_link(specifications, strategy: :one_for_one, max_restarts: 1_000)

    worker = [cmd: [@python, "-u", "squares.py"], stdio: :pipe, packet: :line]
    {:ok, pool} = Pool.start_link(name: MyApp.Python, size: 6, worker: worker)
    :ok = Pool.await_ready(pool, 60_000)
    for _ <- 1..5, do: spawn_link(fn -> use_pool(pool) end)
    send(asker, :started)
    Process.sleep(:infinity)
  end

  defp workers do
    beat = [ping_interval: 500]
    patient = [ping_interval: 500, timeout_threshold: 10_000, max_missed_heartbeats: 100]
    lifeline = [@python, "lifeline.py"]

    [
      {"transcoder",
       cmd: ["sh", "-c", "#{@python} -u transcode.py & tail -f /dev/null | cat & wait"]},
      {"search-index", cmd: lifeline, heartbeat: beat},
      {"recommender", cmd: lifeline ++ ["slow", "38"], heartbeat: beat},
      {"geocoder", cmd: lifeline ++ ["stuck", "5"], heartbeat: patient},
      {"mailer", cmd: ["sh", "-c", "while echo waiting for mail; do sleep 2; done"]},
      {"thumbnails", cmd: ["sh", "-c", "sleep 9000 & sleep 9000 & sleep 9000"]},
      {"reports", cmd: [@python, "reports.py"]}
    ]
  end

  defp specification(id, options),
    do: Supervisor.child_spec({Worker, [id: id] ++ options}, id: id)

  defp use_pool(pool) do
    use = fn _worker -> Process.sleep(2_000 + :rand.uniform(3_000)) end
    Pool.with_worker(pool, use, timeout: :infinity)
    Process.sleep(:rand.uniform(2_000))
    use_pool(pool)
  end

  @doc "Starts workers, one of which has to be killed when their BEAM is. Returns when they run."
  def start_doomed do
    for {id, script} <- [
          {"transcoder", "sleep 1000 & echo up; sleep 1000"},
          {"mailer", "echo up; sleep 1000"},
          {"search-index", "trap 'sleep 0.4; exit' TERM; echo up; sleep 1000 & wait"},
          {"reports", "trap 'sleep 0.9; exit' TERM; echo up; sleep 1000 & wait"},
          {"legacy-import", "trap '' TERM; echo up; while :; do sleep 1; done"}
        ] do
      options = [id: id, cmd: ["bash", "-c", script], ready: {:output, "up"}]
      {:ok, _pid} = DynamicSupervisor.start_child(Snakepit.WorkerSupervisor, {Worker, options})
    end
  end
end
