defmodule Snakepit.Worker.Output do
  @moduledoc false

  # The connection to a worker's standard streams: what comes out of it and who gets it, and the end of
  # it for the log. What goes into it is the business of `Input`.
  #
  # The socket is read one piece at a time (`active: :once`), and the next one is asked for when this
  # one has been dealt with: a process that writes faster than that waits in its own `write`.

  require Logger

  alias Snakepit.Worker.{Input, Lines, Tail}

  defstruct [
    :id,
    :socket,
    :kind,
    :deliver,
    :input,
    :tail,
    :rest,
    open?: true,
    requests: :queue.new()
  ]

  @type t :: %__MODULE__{}

  @doc "Takes over a connection. `nil` if output does not pass through the BEAM."
  def new(_options, %{stdio: nil}), do: nil

  def new(options, %{stdio: socket, input: input}) do
    kind = if options.stdio == :pipe, do: :pipe, else: :stream

    # Nobody can write to it, so that is where its input ends.
    if kind == :stream, do: :gen_tcp.shutdown(socket, :write)

    output = %__MODULE__{
      id: options.id,
      socket: socket,
      kind: kind,
      deliver: options.output,
      tail: Tail.new(options.tail_bytes),
      # The beginning of a line, where output is cut into lines.
      rest: if(kind == :stream or options.packet == :line, do: ""),
      input: if(input, do: Input.start_link(input, options.packet))
    }

    next(output)
  end

  @doc "Takes what has come, hands it on, and asks for more. Gives the packets in it."
  def take(%__MODULE__{} = output, data) do
    {packets, output} = output |> keep(data) |> cut(data)
    {packets, packets |> Enum.reduce(output, &deliver(&2, &1)) |> next()}
  end

  defp cut(%{rest: nil} = output, data), do: {[data], output}

  defp cut(output, data) do
    {lines, rest} = Lines.split(output.rest, data)
    {lines, %{output | rest: rest}}
  end

  # To whom it is for: the first request that waits, or whoever the output option names.
  defp deliver(output, data) do
    case :queue.out(output.requests) do
      {{:value, from}, rest} ->
        GenServer.reply(from, {:ok, data})
        %{output | requests: rest}

      {:empty, _none} ->
        hand_on(output.deliver, output.id, data)
        output
    end
  end

  defp next(output) do
    # One that is closed says so by itself.
    :inet.setopts(output.socket, active: :once)
    output
  end

  @doc "Sends data, then answers `from`. With `request: true` the answer is the next packet."
  def write(output, from, data, opts \\ [])

  def write(%__MODULE__{input: input} = output, from, data, opts) when input != nil do
    if opts[:request] do
      Input.write(input, nil, data)
      %{output | requests: :queue.in(from, output.requests)}
    else
      Input.write(input, from, data)
      output
    end
  end

  def write(output, from, _data, _opts) do
    GenServer.reply(from, Input.error(:einval, "its :stdio is not :pipe"))
    output
  end

  @doc "Ends the process's standard input; answers `from`."
  def close_input(%__MODULE__{input: input} = output, from) when input != nil do
    Input.shutdown(input, from)
    output
  end

  # There was none to begin with.
  def close_input(output, from) do
    GenServer.reply(from, :ok)
    output
  end

  @doc "Closes the connection, and fails those who wait for an answer."
  def close(nil, _detail), do: nil

  def close(%__MODULE__{} = output, detail) do
    if output.input, do: Input.close(output.input)
    :gen_tcp.close(output.socket)

    for from <- :queue.to_list(output.requests),
        do: GenServer.reply(from, Input.error(:worker_down, detail))

    %{output | open?: false, input: nil, requests: :queue.new()}
  end

  @doc """
  Nothing will come any more. A last line without a newline is one too, but no answer to a request: the
  process may have been killed in the middle of it.
  """
  def closed(%__MODULE__{rest: rest} = output) when rest in [nil, ""],
    do: %{output | open?: false}

  def closed(%__MODULE__{} = output) do
    hand_on(output.deliver, output.id, output.rest)
    %{output | open?: false, rest: ""}
  end

  @doc "All that is still in the connection of a process that is gone."
  def drain(%__MODULE__{socket: socket, open?: true} = output, patience_ms) do
    receive do
      {:tcp, ^socket, data} -> output |> take(data) |> elem(1) |> drain(patience_ms)
      {:tcp_closed, ^socket} -> closed(output)
      {:tcp_error, ^socket, _reason} -> closed(output)
    after
      patience_ms -> output
    end
  end

  def drain(output, _patience_ms), do: output

  @doc "The end of what was written, with what the guardian kept of it."
  def tail(%__MODULE__{kind: :stream, tail: tail}, _kept), do: Tail.content(tail)
  def tail(_none_or_pipe, kept), do: kept

  # A pipe is a channel with a format of its own; what is told to people comes over standard error.
  defp keep(%{kind: :pipe} = output, _data), do: output
  defp keep(output, data), do: %{output | tail: Tail.add(output.tail, data)}

  defp hand_on(:quiet, _id, _data), do: :ok
  defp hand_on({:send, pid}, id, data), do: send(pid, {Snakepit.Worker, id, {:output, data}})
  defp hand_on(:logger, id, data), do: Logger.info("#{id}: #{Tail.text(data)}")
  defp hand_on(fun, _id, data), do: fun.(data)
end
