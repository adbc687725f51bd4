# A pool of gRPC servers in Python, and commands that they carry out.
# Needs grpcio: pip install grpcio. Run it with: mix run examples/grpc_service.exs

python = System.get_env("SNAKEPIT_EXAMPLE_PYTHON", "python3")

if match?({_, 0}, Snakepit.cmd(python, ["-c", "import grpc"], stderr: :null)) do
  service = [cmd: [python, Path.join(__DIR__, "grpc_service.py")]]

  children = [
    {Snakepit.Pool, name: MyApp.Service, size: 2, worker: {Snakepit.GRPCWorker, service}}
  ]

  {:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

  {:ok, %{"msg" => "hi"}} = Snakepit.execute("ping", %{msg: "hi"}, pool: MyApp.Service)

  :ok =
    Snakepit.execute_stream("count", %{to: 3}, &IO.puts("part #{&1["n"]}"), pool: MyApp.Service)

  # The calls of a session get the same worker.
  session = [pool: MyApp.Service, session_id: "user-1", affinity: :strict]
  {:ok, %{"msg" => "pong"}} = Snakepit.execute("ping", %{}, session)

  {:error, error} = Snakepit.execute("ping", %{message: "hi"}, pool: MyApp.Service)
  IO.puts("#{error.reason}: #{error.detail |> String.split("\n") |> hd()}")

  Supervisor.stop(supervisor)

  # One server by itself, with the messages of a .proto as bytes.
  {:ok, worker} = Snakepit.GRPCWorker.start_link(service ++ [socket: :abstract])

  {:ok, <<8, 1>>} = Snakepit.GRPCWorker.call(worker, "/grpc.health.v1.Health/Check", "")

  first =
    worker
    |> Snakepit.GRPCWorker.stream("/snakepit.Commands/ExecuteStream", <<10, 4, "ping">>)
    |> Enum.take(1)

  IO.puts("answers: #{length(first)}")
  :ok = Snakepit.Worker.stop(worker)
else
  IO.puts("skipped: grpcio is not installed")
end
