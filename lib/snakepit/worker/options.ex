defmodule Snakepit.Worker.Options do
  @moduledoc false

  # What `Snakepit.Worker.start_link/1` was given, checked before anything starts, with defaults from
  # the configuration filled in.

  alias Snakepit.{Command, Config}
  alias Snakepit.Worker.Launch

  # When its worker ends it. In other endings those decide, if the user does not.
  @stop_timeout 2_000

  @derive {Inspect, only: [:id, :stdio]}
  @enforce_keys [:id, :command]
  defstruct [
    :id,
    :command,
    :name,
    :packet,
    :ready,
    :heartbeat,
    :ping,
    :owner,
    on_guardian_down: :restart,
    stop_order: :together,
    stdio: :tail,
    output: :quiet,
    ready_timeout: 15_000,
    max_packet: 16_777_216,
    answer_timeout: 30_000,
    stop_signal: :sigterm,
    stop_timeout: @stop_timeout,
    tail_bytes: 65_536,
    signal_scope: :group
  ]

  @type t :: %__MODULE__{}

  # How each option of a worker is checked; the others are the command's.
  @own [
    id: {:text, nil},
    name: {:name, nil},
    run_id_flag: {:text, nil},
    stdio: {:stdio, :tail},
    packet: {{:one_of, [:raw, :line, 4]}, nil},
    max_packet: {:max_packet, 16_777_216},
    answer_timeout: {:pos_integer, 30_000},
    output: {:output, nil},
    ready: {:ready, nil},
    ready_timeout: {:pos_integer, 15_000},
    on_guardian_down: {{:one_of, [:restart, :exit]}, :restart},
    stop_order: {{:one_of, [:together, :supervisor]}, :together},
    heartbeat: {:heartbeat, nil},
    ping: {:ping, nil}
  ]

  # Some weeks: a timer can wait for it, and for what is added to it.
  @longest_ms 0x7FFFFFFF

  # What the length of a packet is kept in by the socket.
  @longest_packet 0x7FFFFFFF

  @heartbeat_keys [:ping_interval, :timeout_threshold, :max_missed_heartbeats]

  @doc false
  @spec new!(keyword()) :: t()
  def new!(opts) do
    unless Keyword.keyword?(opts) do
      raise ArgumentError, "expected options as a keyword list, got: #{inspect(opts)}"
    end

    {own, rest} = Keyword.split(opts, Keyword.keys(@own))
    config = Config.current()
    own = Map.new(@own, fn {key, {type, default}} -> {key, get!(own, key, type, default)} end)
    check_command!(rest)
    heartbeat = heartbeat(own, config.heartbeat)
    # Before the command, which needs it for its last argument.
    id = own.id || id(own.name)
    output = own.output || if(config.log_output, do: :logger, else: :quiet)

    command = command(rest, own)

    options = %__MODULE__{
      id: id,
      name: own.name,
      command: command,
      stdio: own.stdio,
      packet: own.packet,
      max_packet: own.max_packet,
      answer_timeout: own.answer_timeout,
      output: output,
      ready: own.ready,
      ready_timeout: own.ready_timeout,
      stop_signal: command.stop_signal,
      stop_timeout: command.stop_timeout || @stop_timeout,
      on_guardian_down: own.on_guardian_down,
      stop_order: own.stop_order,
      heartbeat: heartbeat,
      ping: own.ping,
      tail_bytes: config.output_tail_bytes,
      signal_scope: if(config.process_group_kill, do: :group, else: :process)
    }

    agree!(options, own)
  end

  # The log, the ledger and `Snakepit.workers/0` then say what its owner calls it.
  defp id(name) when is_atom(name) and name != nil, do: inspect(name)
  defp id(_none_or_elsewhere), do: Launch.unique_id("worker")

  @doc "What is to be connected: see `Snakepit.Worker.Launch`."
  def plan(%__MODULE__{} = options) do
    %{
      id: options.id,
      command: options.command,
      stdio: connection(options),
      lifeline: options.heartbeat != nil and options.ping == nil
    }
  end

  # Output that somebody wants to see passes through the BEAM. Errors belong to it, except where it is
  # a channel with a format of its own.
  defp connection(%{stdio: :pipe} = options), do: {:pipe, socket_options(options)}
  defp connection(%{output: :quiet, ready: ready}) when not is_tuple(ready), do: nil
  defp connection(%{output: :quiet, ready: {kind, _}}) when kind != :output, do: nil
  defp connection(%{stdio: :tail}), do: {:stream, socket_options(%{packet: :line})}
  # `:log_output` of the configuration is no reason to refuse those that write elsewhere.
  defp connection(_options), do: nil

  # Lines are cut by `Snakepit.Worker.Lines`.
  defp socket_options(%{packet: 4, max_packet: limit}), do: [packet: 4, packet_size: limit]
  defp socket_options(_raw_or_line), do: [packet: :raw, buffer: 65_536]

  defp command(rest, own) do
    stdio = if own.stdio == :pipe, do: :null, else: own.stdio
    command = Command.new!([stdio: stdio] ++ rest)

    case own.run_id_flag do
      nil -> command
      flag -> %{command | cmd: command.cmd ++ [flag, Snakepit.run_id()]}
    end
  end

  # So that an unknown option is told apart from one of the command, and both are listed.
  defp check_command!(rest) do
    internal = [:stdio, :lifeline]
    known = (%Command{cmd: []} |> Map.from_struct() |> Map.keys()) -- internal

    # Only a command may leave it open.
    with {:ok, nil} <- Keyword.fetch(rest, :stop_timeout),
         do: mismatch(:stop_timeout, "a number of milliseconds", nil)

    with [key | _] <- Keyword.keys(rest) -- known do
      known = inspect(Enum.sort(known ++ Keyword.keys(@own)))
      raise ArgumentError, "unknown option #{inspect(key)}, expected one of #{known}"
    end
  end

  defp heartbeat(%{heartbeat: false}, _config), do: nil
  defp heartbeat(%{heartbeat: nil, ping: nil}, %{enabled: false}), do: nil

  defp heartbeat(%{heartbeat: given}, config) do
    given = if is_list(given), do: Map.new(given), else: %{}

    Map.merge(
      %{
        ping_interval: config.ping_interval_ms,
        timeout_threshold: config.timeout_threshold_ms,
        max_missed_heartbeats: config.max_missed_heartbeats
      },
      given
    )
  end

  defp agree!(options, own) do
    if options.packet && options.stdio != :pipe,
      do: mismatch(:packet, "given only with stdio: :pipe", options.packet)

    if options.stdio not in [:tail, :pipe] and own.output not in [nil, :quiet],
      do: mismatch(:stdio, ":tail or :pipe, so that there is something to :output", options.stdio)

    if options.stdio not in [:tail, :pipe] and match?({:output, _}, options.ready),
      do: mismatch(:stdio, ":tail or :pipe, so that :ready can see the output", options.stdio)

    if options.ready == :heartbeat and options.heartbeat == nil,
      do: mismatch(:ready, "something other than :heartbeat without heartbeats", :heartbeat)

    if options.ping && options.heartbeat == nil,
      do: mismatch(:heartbeat, "true or its options, as there is a :ping", false)

    options
  end

  defp get!(own, key, type, default) do
    case Keyword.fetch(own, key) do
      {:ok, value} -> check!(type, key, value)
      :error -> default
    end
  end

  @never_nil [:ready_timeout, :on_guardian_down, :stop_order, :max_packet, :answer_timeout]

  defp check!(_type, key, nil) when key not in @never_nil, do: nil

  defp check!({:one_of, choices}, key, value) do
    if value in choices, do: value, else: mismatch(key, "one of #{inspect(choices)}", value)
  end

  defp check!(:text, key, value) do
    cond do
      not is_binary(value) or value == "" -> mismatch(key, "a non-empty string", value)
      not String.valid?(value) -> mismatch(key, "text in UTF-8", value)
      String.contains?(value, <<0>>) -> mismatch(key, "text without NUL bytes", value)
      true -> value
    end
  end

  defp check!(:name, _key, name) when is_atom(name), do: name
  defp check!(:name, _key, {:global, _} = name), do: name
  defp check!(:name, _key, {:via, module, _} = name) when is_atom(module), do: name
  defp check!(:name, key, other), do: mismatch(key, "a name as for GenServer", other)

  # What the command checks itself is left to it.
  defp check!(:stdio, _key, value) when value in [:tail, :null, :inherit, :pipe], do: value
  defp check!(:stdio, _key, {:file, path} = value) when is_binary(path), do: value

  defp check!(:stdio, key, other),
    do: mismatch(key, ":tail, :null, :inherit, :pipe or {:file, path}", other)

  defp check!(:output, _key, value) when value in [:quiet, :logger], do: value
  defp check!(:output, _key, {:send, pid} = value) when is_pid(pid), do: value
  defp check!(:output, _key, fun) when is_function(fun, 1), do: fun

  defp check!(:output, key, other),
    do: mismatch(key, ":quiet, :logger, {:send, pid} or a function of one argument", other)

  defp check!(:ready, _key, {:output, pattern} = ready) when is_binary(pattern) and pattern != "",
    do: ready

  defp check!(:ready, _key, {:output, %Regex{}} = ready), do: ready
  defp check!(:ready, _key, {:tcp, port} = ready) when port in 1..65_535, do: ready
  defp check!(:ready, _key, {:unix, path} = ready) when is_binary(path) and path != "", do: ready
  defp check!(:ready, _key, :heartbeat), do: :heartbeat
  defp check!(:ready, _key, fun) when is_function(fun, 0) or is_function(fun, 1), do: fun

  defp check!(:ready, key, other) do
    expected =
      "nil, {:output, pattern}, {:tcp, port}, {:unix, path}, :heartbeat, " <>
        "or a function of no or one argument"

    mismatch(key, expected, other)
  end

  defp check!(:pos_integer, _key, value) when value in 1..@longest_ms, do: value

  defp check!(:pos_integer, key, other),
    do: mismatch(key, "a number of milliseconds from 1 to #{@longest_ms}", other)

  defp check!(:max_packet, _key, value) when value in 1..@longest_packet, do: value

  defp check!(:max_packet, key, other),
    do: mismatch(key, "a number of bytes from 1 to #{@longest_packet}", other)

  defp check!(:heartbeat, _key, value) when is_boolean(value), do: value

  defp check!(:heartbeat, key, value) do
    unless Keyword.keyword?(value), do: mismatch(key, "true, false or a keyword list", value)

    for {name, number} <- value do
      unless name in @heartbeat_keys,
        do: mismatch(key, "options among #{inspect(@heartbeat_keys)}", name)

      unless number in 1..@longest_ms,
        do: mismatch(key, "numbers from 1 to #{@longest_ms}", {name, number})
    end

    value
  end

  defp check!(:ping, _key, fun) when is_function(fun, 0) or is_function(fun, 1), do: fun
  defp check!(:ping, key, other), do: mismatch(key, "a function of no or one argument", other)

  defp mismatch(key, expected, given) do
    raise ArgumentError, "expected #{inspect(key)} to be #{expected}, got: #{inspect(given)}"
  end
end
