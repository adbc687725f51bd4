defmodule Snakepit.Execution do
  @moduledoc false

  # `Snakepit.execute/3` and `Snakepit.execute_stream/4`: finds the pool and its adapter, which does the rest.

  alias Snakepit.{Adapter, Config, Error, Options, Pool}

  @schema [
    pool: [
      type: {:or, [{:one_of, [nil]}, :name, :pid]},
      default: nil,
      shown: "the first of the configured `:pools`",
      doc: "the pool, by its name or pid"
    ],
    timeout: [
      type: :timeout,
      default: 30_000,
      doc: "how long all of it may take, the wait for a free worker included"
    ],
    session_id: [
      type: {:or, [{:one_of, [nil]}, :text]},
      default: nil,
      doc: "what calls of one session have in common: they get the same worker, see `:affinity`"
    ],
    affinity: [
      type: {:one_of, [:hint, :strict, :fail_fast]},
      default: :hint,
      doc: "what to do if the worker of the session is in use, see `Snakepit.Pool`"
    ]
  ]

  @stream_schema Options.put_defaults(@schema, timeout: 300_000)

  def schema, do: @schema
  def stream_schema, do: @stream_schema

  @spec execute(String.t(), map() | keyword(), keyword()) :: {:ok, term()} | {:error, Error.t()}
  def execute(command, arguments, opts) do
    {opts, arguments} = prepare!(command, arguments, opts, @schema)
    {pool, opts} = Map.pop(opts, :pool)

    with {:ok, pool, adapter} <- pool(pool),
         do: adapter.run_command(pool, command, arguments, opts)
  end

  @spec execute_stream(String.t(), map() | keyword(), (term() -> term()), keyword()) ::
          :ok | {:error, Error.t()}
  def execute_stream(command, arguments, fun, opts) do
    Options.check!(fun, {:function, [1]}, :callback)
    {opts, arguments} = prepare!(command, arguments, opts, @stream_schema)

    {pool, opts} = Map.pop(opts, :pool)

    with {:ok, pool, adapter} <- pool(pool),
         do: adapter.stream_command(pool, command, arguments, fun, opts)
  end

  @doc "Checks what a command is called with. The time that it may take begins now."
  @spec prepare!(String.t(), map() | keyword(), keyword(), Options.schema()) :: {map(), map()}
  def prepare!(command, arguments, opts, schema) do
    Options.check!(command, :text, :command)
    {timeout, opts} = opts |> Options.validate!(schema) |> Map.pop(:timeout)
    {Map.put(opts, :deadline, deadline(timeout)), arguments!(arguments)}
  end

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: System.monotonic_time(:millisecond) + timeout

  defp arguments!(%{} = map) when not is_struct(map) do
    Enum.each(map, &name!/1)
    map
  end

  defp arguments!([]), do: %{}

  defp arguments!(arguments) do
    Options.check!(arguments, :keyword, :arguments)
    Map.new(arguments)
  end

  defp name!({name, _value}) when is_atom(name) or is_binary(name), do: :ok

  defp name!({name, _value}),
    do: Options.mismatch!(:arguments, "a map of atoms or strings to values", name)

  defp pool(nil) do
    case Config.current().pools do
      [first | _others] -> pool(first[:name])
      [] -> raise ArgumentError, "expected a :pool, as config :snakepit has no :pools"
    end
  end

  defp pool(pool) do
    with pid when is_pid(pid) <- GenServer.whereis(pool),
         {:ok, adapter} <- Pool.Directory.adapter(pid) do
      adapter(pool, adapter)
    else
      _nowhere_or_elsewhere ->
        detail = "the pool #{inspect(pool)} is not there"
        {:error, %Error{operation: :execute, reason: :pool_down, detail: detail}}
    end
  end

  defp adapter(pool, nil) do
    raise ArgumentError,
          "the workers of the pool #{inspect(pool)} have no #{inspect(Adapter)}: " <>
            "start it with worker: {Snakepit.GRPCWorker, [cmd: ...]} or as a Snakepit.Python, or use " <>
            "Snakepit.Pool.with_worker/3"
  end

  defp adapter(pool, adapter), do: {:ok, pool, adapter}
end
