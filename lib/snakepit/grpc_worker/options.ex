defmodule Snakepit.GRPCWorker.Options do
  @moduledoc false

  # The options of `Snakepit.GRPCWorker.start_link/1`, and what they mean to `Snakepit.Worker`.

  alias Snakepit.Options
  alias Snakepit.GRPC.Address
  alias Snakepit.GRPCWorker.{Client, Link}

  # Calls that run may end.
  @stop_timeout 5_000
  @max_message 4 * 1024 * 1024

  @own [
    port: [
      type: {:integer, 0, 65_535},
      default: 0,
      doc: "the port of 127.0.0.1 that the server is to listen on; with 0 it picks one"
    ],
    socket: [
      type: {:or, [{:one_of, [nil, :abstract]}, :path]},
      default: nil,
      doc: """
      a Unix socket instead of a port: the path of its file, or `:abstract` for one that the server picks and that has no
      file
      """
    ],
    address: [
      type:
        {:or,
         [
           {:one_of, [nil]},
           {:custom, &__MODULE__.address?/1, "an address such as \"127.0.0.1:50051\""}
         ]},
      default: nil,
      shown: "announced by the server",
      doc:
        "where it listens, for a server that does not say so; it is given no `--port` and no `--socket` then"
    ],
    elixir_address: [
      type: {:or, [{:one_of, [nil]}, :text]},
      default: nil,
      doc: "passed on as `--elixir-address`: where a gRPC server of your own in Elixir listens"
    ],
    client: [
      type: {:custom, &__MODULE__.client?/1, "a module, or {module, options}"},
      default: Client.HTTP2,
      doc: "who talks to the server: a `Snakepit.GRPCWorker.Client`, or `{module, options}`"
    ],
    max_message: [
      type: {:integer, 1, 0x7FFFFFFF, "bytes"},
      default: @max_message,
      doc: "the longest message, both ways"
    ]
  ]

  # These are the business of this kind of worker.
  @taken [:ready, :ping, :watchdog, :stdio, :packet, :in_flight, :tag, :run_id_flag, :client]

  @call [
    timeout: [type: :timeout, default: 30_000, doc: "how long the call may take"],
    max_message: [
      type: {:or, [{:one_of, [nil]}, {:integer, 1, 0x7FFFFFFF, "bytes"}]},
      default: nil,
      shown: "the worker's",
      doc: "the longest message, both ways"
    ],
    metadata: [
      type: {:custom, &__MODULE__.metadata?/1, "a list of pairs of lower-case names and texts"},
      default: [],
      doc: "headers of the request"
    ]
  ]

  def own, do: @own
  def call, do: @call

  @doc "Returns the options of a `Snakepit.Worker`. Raises `ArgumentError` for its own; the worker checks the others."
  @spec worker(keyword()) :: keyword()
  def worker(given) do
    Options.keyword!(given)
    {own, others} = Keyword.split(given, Keyword.keys(@own))
    opts = Options.validate!(own, @own)

    for key <- @taken, Keyword.has_key?(others, key) do
      raise ArgumentError, "a Snakepit.GRPCWorker has no option #{inspect(key)}, it has its own"
    end

    stop_timeout = Keyword.get(others, :stop_timeout, @stop_timeout)
    variables = variables(opts, stop_timeout, Keyword.get(others, :env, []))

    [stop_timeout: stop_timeout, heartbeat: true]
    |> Keyword.merge(others)
    |> Keyword.update(:cmd, [], &(&1 ++ arguments(opts)))
    |> Keyword.merge(env: variables, run_id_flag: "--run-id", client: {Link, link(opts)})
  end

  defp link(opts) do
    {module, client_opts} = with module when is_atom(module) <- opts.client, do: {module, []}
    %{client: {module, client_opts}, address: opts.address, max_message: opts.max_message}
  end

  defp arguments(opts), do: listen(opts) ++ elixir_address(opts)

  defp listen(%{address: address}) when address != nil, do: []
  defp listen(%{socket: :abstract}), do: ["--socket", "@"]
  defp listen(%{socket: path}) when path != nil, do: ["--socket", path]
  defp listen(%{port: port}), do: ["--port", "#{port}"]

  defp elixir_address(%{elixir_address: nil}), do: []
  defp elixir_address(%{elixir_address: address}), do: ["--elixir-address", address]

  # What the user says comes last, and counts. A list that is none is for the worker to refuse.
  defp variables(_opts, _stop_timeout, env) when not is_list(env) and not is_map(env), do: env

  defp variables(opts, stop_timeout, env) do
    [
      {"PYTHONPATH", python_path()},
      {"SNAKEPIT_MAX_MESSAGE", "#{opts.max_message}"},
      {"SNAKEPIT_STOP_TIMEOUT_MS", "#{stop_timeout}"}
    ] ++ Enum.to_list(env)
  end

  defp python_path do
    bridge = Application.app_dir(:snakepit, "priv/python")
    Enum.join([bridge | List.wrap(System.get_env("PYTHONPATH"))], ":")
  end

  @doc false
  def address?(address), do: is_binary(address) and match?({:ok, _, _}, Address.parse(address))

  @doc false
  def client?({module, opts}), do: client?(module) and Keyword.keyword?(opts)

  def client?(module) when is_atom(module),
    do: Code.ensure_loaded?(module) and function_exported?(module, :connect, 2)

  def client?(_other), do: false

  # Nothing that could end a header and begin another.
  @doc false
  def metadata?(pairs) when is_list(pairs), do: Enum.all?(pairs, &header?/1)
  def metadata?(_other), do: false

  defp header?({name, value}) when is_binary(name) and is_binary(value),
    do: name =~ ~r/\A[0-9a-z_.-]+\z/ and value =~ ~r/\A[\x20-\x7E]*\z/

  defp header?(_other), do: false
end
