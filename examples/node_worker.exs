# A worker in Node with heartbeats, which needs nothing but Node's own modules.
# Run it with: mix run examples/node_worker.exs

if System.find_executable("node") do
  {:ok, worker} =
    Snakepit.Worker.start_link(
      cmd: ["node", Path.join(__DIR__, "node_worker.js")],
      stdio: :pipe,
      packet: :line,
      heartbeat: [ping_interval: 500],
      ready: :heartbeat
    )

  {:ok, answer} = Snakepit.Worker.request(worker, ~s({"words": ["pear", "apple", "fig"]}\n))
  IO.write(answer)
  IO.puts("health: #{Snakepit.Worker.info!(worker).heartbeat.status}")
  :ok = Snakepit.Worker.stop(worker)
else
  IO.puts("skipped: node is not installed")
end
