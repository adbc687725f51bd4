defmodule Snakepit.GRPCWorker do
  alias Snakepit.{Adapter, Error, Execution, Options, Pool, Worker}
  alias Snakepit.GRPC.Messages
  alias Snakepit.GRPCWorker.Link

  @execute Keyword.take(Execution.schema(), [:timeout, :session_id])
  @of_the_worker %{max_message: nil, metadata: []}

  @moduledoc """
  A gRPC server in Python, or any other language, as a part of your supervision tree.

      children = [
        {Snakepit.GRPCWorker, name: MyApp.Models, cmd: ["python3", "models.py"]}
      ]

      Snakepit.GRPCWorker.execute(MyApp.Models, "predict", %{text: "hello"})

  It is a `Snakepit.Worker`, so everything in `Snakepit.Worker` is true of it: `Snakepit.Worker.os_pid/1`, `info/1` and
  `stop/2` work with it, and nothing of it outlives the BEAM. On top of that it has a connection to the server. The guide
  "gRPC workers" writes a server, and says what becomes of arguments and results on the way.

  ## Options

  #{Options.docs(Snakepit.GRPCWorker.Options.own())}

  and those of `Snakepit.Worker` that concern neither its output as pipes nor its readiness. `:heartbeat` is `true` and
  `:stop_timeout` 5000 ms, unless they are given. `PYTHONPATH` leads to `snakepit_bridge`, unless `:env` has another.

  ## The server

  It is started with `--port 0`, or `--socket`, and `--run-id`. It binds what it has picked itself, so no two servers are
  given the same port, and announces its address by the protocol of `sd_notify(3)`, as `X_SNAKEPIT_ADDRESS=127.0.0.1:40123`
  (`snakepit_bridge.grpc` does). Only what the worker's own processes say there counts. For a server that cannot do that,
  give it a port in `:cmd`, and its `:address`.

  The worker is ready when the server's health service (`grpc.health.v1.Health/Check`) says `SERVING`, and `start_link/1`
  returns then. If that does not happen within `:ready_timeout`, the error says what was missing, with the end of the output.

  With heartbeats its method `snakepit.Heartbeat/Ping` is called again and again, over the connection that all calls
  use. A server that answers no longer is replaced. One that says that it has no such method is alive.

  When the worker is stopped, the server gets SIGTERM and ends the calls that run: they have until `:stop_timeout`, and their
  callers get their answers. Later calls fail, with `:worker_down` or `:unavailable`. When the guardian was lost, the
  worker starts another server by itself, and connects to it; calls wait for it meanwhile.

  ## Pools

      {Snakepit.Pool, name: MyApp.Pool, size: 4, worker: {Snakepit.GRPCWorker, cmd: ["python3", "models.py"]}}

  Then `Snakepit.execute/3` and `Snakepit.execute_stream/4` have commands carried out by whichever worker is free, and
  `call/4` is for the worker that `Snakepit.Pool.with_worker/3` lends.

  ## Errors

  `reason` is that of gRPC's status in lower case, such as `:not_found` or `:invalid_argument`, but `:timeout` for a deadline
  that has passed, and `:exception` for a command that has raised. `:worker_down` is a server that has ended, or a
  connection that was lost: with `step: :connect` the request was not sent, otherwise nobody knows whether it was carried
  out. `:emsgsize` is a message longer than `:max_message`, and `:einval` an argument that cannot be carried.
  """

  @behaviour Adapter

  @type worker :: Worker.worker()

  @doc "Returns a child specification. Its id is the `:id`, else the `:name`, else this module."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Options.keyword!(opts)
    id = opts[:id] || opts[:name] || __MODULE__
    %{Worker.child_spec(worker_options(opts)) | id: id, start: {__MODULE__, :start_link, [opts]}}
  end

  @doc "Starts a worker and its server; returns when the server serves. Raises `ArgumentError` on invalid options."
  @spec start_link(keyword()) :: {:ok, pid()} | {:error, Error.t() | {:already_started, pid()}}
  def start_link(opts), do: opts |> worker_options() |> Worker.start_link()

  @doc "Returns the options of `Snakepit.Worker` that make a worker one of this kind."
  @impl Adapter
  @spec worker_options(keyword()) :: keyword()
  defdelegate worker_options(opts), to: Snakepit.GRPCWorker.Options, as: :worker

  @doc "Returns the address of the server, such as `127.0.0.1:40123`."
  @spec address(worker()) :: {:ok, String.t()} | {:error, Error.t()}
  def address(worker), do: with({:ok, link} <- link(worker, 60_000), do: Link.address(link))

  @doc """
  Returns the connection of its client: with `Snakepit.GRPCWorker.Client.Stub` a `GRPC.Channel`, for generated stubs.
  Ask for it for each call, as it is another one when the server was started again.
  """
  @spec channel(worker(), timeout()) ::
          {:ok, Snakepit.GRPCWorker.Client.channel()} | {:error, Error.t()}
  def channel(worker, timeout \\ 5_000) do
    with {:ok, link} <- link(worker, timeout),
         {:ok, %{channel: channel}} <- Link.channel(link, timeout),
         do: {:ok, channel}
  end

  @doc """
  Calls a method of the server, `/package.Service/Method`, with the bytes of a message, and returns those of the answer.

  ## Options

  #{Options.docs(Snakepit.GRPCWorker.Options.call())}

  """
  @spec call(worker(), String.t(), binary(), keyword()) :: {:ok, binary()} | {:error, Error.t()}
  def call(worker, path, message, opts \\ []) do
    opts = call_opts!(path, opts)
    request(worker, path, message, opts, deadline(opts.timeout))
  end

  @doc """
  Calls a method that answers with several messages. Returns them as a lazy stream, each as `{:ok, message}`. If something
  goes wrong, the last element is `{:error, error}`.

  The server waits while the stream is not read, and the call is cancelled when it is abandoned. The options are those
  of `call/4`; the `:timeout` begins when the stream is run.
  """
  @spec stream(worker(), String.t(), binary(), keyword()) :: Enumerable.t()
  def stream(worker, path, message, opts \\ []) do
    opts = call_opts!(path, opts)

    Stream.flat_map([:run], fn :run ->
      messages(worker, path, message, opts, deadline(opts.timeout))
    end)
  end

  @doc """
  Has this worker carry out a command, as `Snakepit.execute/3` does with one of a pool.

  ## Options

  #{Options.docs(@execute)}

  """
  @spec execute(worker(), String.t(), map() | keyword(), keyword()) ::
          {:ok, term()} | {:error, Error.t()}
  def execute(worker, command, arguments \\ %{}, opts \\ []) do
    {opts, arguments} = Execution.prepare!(command, arguments, opts, @execute)
    carry_out(worker, command, arguments, opts)
  end

  @doc "Has this worker carry out a command, as `Snakepit.execute_stream/4` does, with the options of `execute/4`."
  @spec execute_stream(worker(), String.t(), map() | keyword(), (term() -> term()), keyword()) ::
          :ok | {:error, Error.t()}
  def execute_stream(worker, command, arguments, fun, opts \\ []) when is_function(fun, 1) do
    {opts, arguments} = Execution.prepare!(command, arguments, opts, @execute)
    carry_out_stream(worker, command, arguments, fun, opts)
  end

  @impl Adapter
  def run_command(pool, command, arguments, opts) do
    lend = &carry_out(&1, command, arguments, opts)
    unless_unsent(pool, lend, opts)
  end

  @impl Adapter
  def stream_command(pool, command, arguments, fun, opts) do
    lend = &carry_out_stream(&1, command, arguments, fun, opts)
    unless_unsent(pool, lend, opts)
  end

  # A worker that was about to end has not seen the request: another one carries it out. One is lent only when it is
  # ready, so this does not go round quickly.
  defp unless_unsent(pool, fun, opts) do
    lending = [timeout: left(opts.deadline), key: opts.session_id, affinity: opts.affinity]

    case Pool.with_worker(pool, fun, lending) do
      {:error, %Error{reason: :worker_down, step: :connect}} -> unless_unsent(pool, fun, opts)
      result -> result
    end
  end

  defp carry_out(worker, command, arguments, opts) do
    with {:ok, message} <- Messages.execute(command, arguments, opts.session_id),
         {:ok, answer} <-
           request(worker, Messages.execute_path(), message, @of_the_worker, opts.deadline),
         {:ok, result} <- Messages.reply(command, answer) do
      {:ok, result}
    else
      {:error, error} -> {:error, %{error | operation: :execute}}
    end
  end

  defp carry_out_stream(worker, command, arguments, fun, opts) do
    with {:ok, message} <- Messages.execute(command, arguments, opts.session_id) do
      worker
      |> messages(Messages.execute_stream_path(), message, @of_the_worker, opts.deadline)
      |> Enum.reduce_while(:ok, fn answer, :ok ->
        with {:ok, answer} <- answer,
             {:ok, part} <- Messages.reply(command, answer) do
          fun.(part)
          {:cont, :ok}
        else
          {:error, error} -> {:halt, {:error, %{error | operation: :execute_stream}}}
        end
      end)
    end
  end

  defp request(worker, path, message, opts, deadline) do
    with {:ok, link} <- connect(worker, deadline),
         do: link.client.call(link.channel, path, message, at_most(opts, link, deadline))
  end

  defp messages(worker, path, message, opts, deadline) do
    case connect(worker, deadline) do
      {:ok, link} ->
        link.client.stream(link.channel, path, message, at_most(opts, link, deadline))

      {:error, error} ->
        [{:error, error}]
    end
  end

  defp connect(worker, deadline),
    do: with({:ok, link} <- link(worker, left(deadline)), do: Link.channel(link, left(deadline)))

  # What the worker allows, if the call says nothing.
  defp at_most(opts, link, deadline) do
    %{
      timeout: left(deadline),
      max_message: opts.max_message || link.max_message,
      metadata: opts.metadata
    }
  end

  # A worker that starts its server again answers when that serves.
  defp link(worker, timeout) do
    case Worker.client(worker, timeout) do
      {:ok, link} when is_pid(link) ->
        {:ok, link}

      {:ok, nil} ->
        raise ArgumentError,
              "expected a Snakepit.GRPCWorker, got: #{inspect(worker)}, a worker of another kind"

      {:error, error} ->
        {:error, %{error | operation: :grpc, step: :connect}}
    end
  end

  defp call_opts!(path, opts) do
    Options.check!(path, {:custom, &path?/1, "a path such as \"/package.Service/Method\""}, :path)
    Options.validate!(opts, Snakepit.GRPCWorker.Options.call())
  end

  defp path?(path), do: is_binary(path) and path =~ ~r{\A/[\w.]+/\w+\z}

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: System.monotonic_time(:millisecond) + timeout

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - System.monotonic_time(:millisecond), 0)
end
