defmodule Snakepit.Test.GRPC do
  @moduledoc "A Python with `grpcio`, and the service of the tests."

  alias Snakepit.{GRPCWorker, Pool}

  @root Path.expand("../..", __DIR__)

  @doc "The interpreter; that of `script/test-python` has what is needed."
  def python do
    Enum.find([Path.join(@root, "_build/python/bin/python")], "python3", &File.exists?/1)
  end

  @doc "Why the tests that need `grpcio` are skipped, if they are."
  def skip do
    available? =
      match?({_, 0}, System.cmd(python(), ["-c", "import grpc"], stderr_to_stdout: true))

    if available?, do: false, else: "grpcio is not there: run script/test-python"
  end

  @doc "The options of a worker of the service."
  def service(opts \\ []),
    do: Keyword.merge([cmd: [python(), Path.join(@root, "test/fixtures/grpc_service.py")]], opts)

  @doc "Starts a worker of the service, which is linked to the caller."
  def start(opts \\ []) do
    {:ok, worker} = opts |> service() |> GRPCWorker.start_link()
    worker
  end

  @doc "Starts a pool of three servers, and one on the socket `one.sock`, in a BEAM that is to be killed."
  def start_several(directory) do
    keep(fn ->
      pool = [name: GRPCPool, size: 3, worker: {GRPCWorker, service()}]
      {:ok, _pool} = Pool.start_link(pool)
      start(name: GRPCOne, socket: Path.join(directory, "one.sock"))
    end)

    Pool.await_ready(GRPCPool, 60_000)
  end

  @doc "Has each server of that pool begin a command that does not end."
  def begin_calls(directory) do
    for n <- 1..3 do
      path = Path.join(directory, "held-#{n}")

      spawn(fn ->
        Snakepit.execute("wait_for", %{path: path}, pool: GRPCPool, timeout: :infinity)
      end)
    end

    :ok
  end

  @doc "Starts a server on a socket, and returns its address."
  def start_on(socket), do: GRPCWorker.address(keep(fn -> start(socket: socket) end))

  # Whoever asks for it may end before the BEAM does.
  defp keep(fun) do
    me = self()

    spawn(fn ->
      send(me, {:kept, fun.()})
      Process.sleep(:infinity)
    end)

    receive(do: ({:kept, value} -> value))
  end
end
