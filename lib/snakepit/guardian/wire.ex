defmodule Snakepit.Guardian.Wire do
  @moduledoc false

  # The port to the guardian's program: opens it, exchanges the first frames, and encodes and decodes all
  # others.

  alias Snakepit.{Native, Run}

  # More children than one guardian starts, a million in each second of a week; and a multiple of what the
  # lineage counts to.
  @ids_per_guardian 1_099_511_627_776
  # `MAX_FRAME` of the wire protocol. The guardian ends over a larger one, and with it every child.
  @max_frame 16 * 1024 * 1024
  # What the guardian may take to answer the greeting.
  @welcome_ms 10_000

  @doc "Starts the guardian."
  @spec open(keyword()) :: port()
  def open(opts) do
    # Tests have guardians that misbehave.
    executable = Keyword.get_lazy(opts, :executable, &executable/0)
    # Not over standard input and output: those stay the BEAM's, for children that inherit them.
    # By its argument the next start knows it for the guardian of this run.
    run = Keyword.fetch!(opts, :run)

    told = Native.guardian_environment()
    environment = Enum.map(told, fn {key, value} -> {to_charlist(key), to_charlist(value)} end)
    options = [:binary, :exit_status, :nouse_stdio, packet: 4, args: [run.id], env: environment]
    Port.open({:spawn_executable, executable}, options)
  end

  @doc "Returns the first request to a guardian, `hello`."
  @spec hello(Run.t(), map(), pos_integer()) :: map()
  def hello(run, config, ahead) do
    %{
      beam_pid: String.to_integer(System.pid()),
      run_id: run.id,
      run_directory: run.directory,
      grace_ms: config.watchdog.grace_period_ms,
      log_level: config.log_level,
      tail_bytes: config.output_tail_bytes,
      ahead: ahead,
      # No child of this guardian has the id of one of the last: a caller that has not heard yet
      # would release or stop another's.
      first_id: count() * @ids_per_guardian
    }
  end

  # How many guardians this BEAM has had.
  defp count do
    count = :persistent_term.get({__MODULE__, :count}, 0) + 1
    :persistent_term.put({__MODULE__, :count}, count)
    count
  end

  @doc "Waits for the guardian's reply to `hello`."
  @spec first_event(port(), keyword()) :: {:ok, tuple()} | {:error, term()}
  def first_event(port, opts) do
    receive do
      {^port, {:data, frame}} -> decode(frame)
      {^port, {:exit_status, status}} -> {:error, {:exit_status, status}}
    after
      Keyword.get(opts, :welcome_ms, @welcome_ms) -> {:error, :no_answer}
    end
  end

  @doc "Decodes a frame of the guardian's."
  @spec decode(binary()) :: {:ok, tuple()} | {:error, :malformed}
  def decode(frame), do: Native.wire_decode(frame)

  @doc """
  Sends the guardian a request. Returns `false` if the port is closed because the guardian has died; the message that
  reports that follows.
  """
  @spec command(port(), term()) :: boolean()
  def command(port, request), do: transmit(port, Native.wire_encode(request))

  @doc "Sends a request as a frame, unless it is larger than the guardian accepts."
  @spec encode(term()) :: {:ok, binary()} | {:error, :e2big}
  def encode(request) do
    frame = Native.wire_encode(request)
    if byte_size(frame) > @max_frame, do: {:error, :e2big}, else: {:ok, frame}
  end

  @doc "As `command/2`, for a request that is encoded already."
  @spec transmit(port(), binary()) :: boolean()
  def transmit(port, frame) do
    Port.command(port, frame)
  rescue
    ArgumentError -> false
  end

  @doc "As `command/2`, unless the guardian has not read earlier requests."
  @spec try_command(port(), term()) :: boolean()
  def try_command(port, request) do
    Port.command(port, Native.wire_encode(request), [:nosuspend])
  rescue
    ArgumentError -> false
  end

  @doc "Closes the port, if it is open."
  @spec close(port()) :: true
  def close(port) do
    Port.close(port)
  rescue
    ArgumentError -> true
  end

  defp executable, do: Application.app_dir(:snakepit, "priv/native/snakepit_guardian")
end
