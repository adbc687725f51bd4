defmodule Snakepit.Test.GRPC do
  @moduledoc "A Python with `grpcio`, and the service of the tests."

  alias Snakepit.GRPCWorker

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
end
