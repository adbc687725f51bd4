# A gRPC server in Python whose health is checked over gRPC, by a `:ping` function.
# Needs grpcio: pip install grpcio. Run it with: mix run examples/grpc_server.exs

python = System.get_env("SNAKEPIT_EXAMPLE_PYTHON", "python3")

if match?({_, 0}, Snakepit.cmd(python, ["-c", "import grpc"])) do
  {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
  {:ok, port} = :inet.port(socket)
  :gen_tcp.close(socket)

  {:ok, client} =
    Snakepit.Worker.start_link(
      cmd: [python, Path.join(__DIR__, "grpc_ping.py"), "#{port}"],
      stdio: :pipe,
      packet: :line
    )

  ping = fn -> match?({:ok, "PONG:" <> _}, Snakepit.Worker.request(client, "ping\n")) end

  {:ok, server} =
    Snakepit.Worker.start_link(
      cmd: [python, Path.join(__DIR__, "grpc_server.py"), "#{port}"],
      env: [{"PYTHONPATH", Application.app_dir(:snakepit, "priv/python")}],
      heartbeat: [ping_interval: 200],
      ping: ping,
      ready: :heartbeat
    )

  IO.puts("health: #{Snakepit.Worker.info!(server).heartbeat.status}")
  :ok = Snakepit.Worker.stop(server)
  :ok = Snakepit.Worker.stop(client)
  IO.puts("stopped")
else
  IO.puts("skipped: grpcio is not installed")
end
