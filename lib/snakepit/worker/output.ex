defmodule Snakepit.Worker.Output do
  @moduledoc false

  # The connection to a worker's standard streams: what comes out of it and who gets it, and the end of
  # it for the log. What goes into it is the business of `Input`.
  #
  # The socket is read one piece at a time (`active: :once`), and the next one is asked for when this
  # one has been dealt with: a process that writes faster than that waits in its own `write`.

  require Logger

  alias Snakepit.Error
  alias Snakepit.Worker.{Input, Requests}
  alias Snakepit.Output.{Lines, Tail}

  # Output that is passed on and answers nobody comes in pieces if its lines are longer.
  @passed_on_bytes 65_536

  @enforce_keys [:id, :socket, :kind, :packet, :deliver, :tail]
  defstruct [
    :id,
    :socket,
    :kind,
    :packet,
    :deliver,
    :input,
    :tail,
    :lines,
    :fault,
    open?: true,
    requests: %Requests{}
  ]

  @typedoc """
  `lines` is the beginning of a line, where output is cut into lines. `fault` is what the process has done
  that leaves nobody sure of its answers: the worker ends with it.
  """
  @type t :: %__MODULE__{
          id: String.t(),
          socket: :gen_tcp.socket(),
          kind: :pipe | :stream,
          packet: :raw | :line | 4 | nil,
          deliver: term(),
          input: Input.t() | nil,
          tail: Tail.t(),
          lines: Lines.t() | nil,
          fault: :max_packet | :unexpected_output | nil,
          open?: boolean(),
          requests: Requests.t()
        }

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
      packet: options.packet,
      deliver: options.output,
      tail: Tail.new(options.tail_bytes),
      lines: lines(kind, options),
      input: if(input, do: Input.start_link(input, options.packet))
    }

    next(output)
  end

  defp lines(:stream, _options), do: Lines.new(@passed_on_bytes)
  defp lines(:pipe, %{packet: :line, max_packet: limit}), do: Lines.new(limit)
  defp lines(:pipe, _options), do: nil

  @doc "Takes what has come, hands it on, and asks for more. Returns the packets in it."
  # Order: after a fault nothing is an answer any more. What follows a line that is too long is its end.
  def take(%__MODULE__{fault: fault} = output, data) when fault != nil,
    do: {[], output |> keep(data) |> next()}

  def take(%__MODULE__{} = output, data) do
    {packets, output} = output |> keep(data) |> cut(data)
    {packets, packets |> Enum.reduce(output, &deliver(&2, &1)) |> next()}
  end

  defp cut(%{lines: nil} = output, data), do: {[data], output}

  defp cut(%{kind: :stream} = output, data) do
    {pieces, lines} = Lines.split_or_cut(output.lines, data)
    {pieces, %{output | lines: lines}}
  end

  defp cut(output, data) do
    case Lines.split(output.lines, data) do
      {:ok, complete, lines} -> {complete, %{output | lines: lines}}
      {:too_long, complete, lines} -> {complete, fault(%{output | lines: lines}, :max_packet)}
    end
  end

  # To whom it is for: the request that the process has, or whoever the output option names.
  defp deliver(output, data) do
    case Requests.answered(output.requests) do
      {from, next, requests} ->
        if from != :nobody, do: GenServer.reply(from, {:ok, data})
        send_all(output.input, next)
        %{output | requests: requests}

      :unexpected ->
        unexpected(output, data)
    end
  end

  # A banner before the first request harms nobody. After that, a packet that answers nothing and that
  # nobody wants to see would be taken for the answer to the next request.
  defp unexpected(%{deliver: :quiet, requests: %{answered: answered}} = output, _data)
       when answered > 0,
       do: fault(output, :unexpected_output)

  defp unexpected(output, data) do
    hand_on(output.deliver, output.id, data)
    output
  end

  # The first one is why the worker ends.
  defp fault(%{fault: nil} = output, reason), do: %{output | fault: reason}
  defp fault(output, _reason), do: output

  defp next(output) do
    # One that is closed says so by itself.
    :inet.setopts(output.socket, active: :once)
    output
  end

  @doc "Sends data, then answers `from`."
  def write(%__MODULE__{input: input} = output, from, data) when input != nil do
    Input.write(input, from, data)
    output
  end

  def write(output, from, _data), do: refuse(output, from, :write, "its :stdio is not :pipe")

  @doc "Sends data when the requests before it are answered. `from` gets the packet that answers it."
  def request(%__MODULE__{input: input} = output, from, data, deadline) when input != nil do
    if output.packet in [nil, :raw] do
      refuse(
        output,
        from,
        :request,
        "it needs packet: :line or packet: 4, to know an answer's end"
      )
    else
      {now, requests} = Requests.add(output.requests, from, data, deadline)
      send_all(input, now)
      %{output | requests: requests}
    end
  end

  def request(output, from, _data, _deadline),
    do: refuse(output, from, :request, "its :stdio is not :pipe")

  @doc "The time of a request is up: see `Snakepit.Worker.Requests.expired/2`."
  def request_expired(%__MODULE__{} = output, timer) do
    {how, requests} = Requests.expired(output.requests, timer)
    {how, %{output | requests: requests}}
  end

  def request_expired(output, _timer), do: {:dropped, output}

  @doc "Whether the process still owes the answer to that request."
  def owes?(%__MODULE__{requests: requests}, timer), do: Requests.owes?(requests, timer)
  def owes?(_none, _timer), do: false

  defp send_all(input, data), do: for(one <- data, do: Input.write(input, nil, one))

  defp refuse(output, from, operation, detail) do
    GenServer.reply(from, {:error, %Error{operation: operation, reason: :einval, detail: detail}})
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

    error = %Error{operation: :request, reason: :worker_down, detail: detail}
    for from <- Requests.callers(output.requests), do: GenServer.reply(from, {:error, error})
    %{output | open?: false, input: nil, requests: %Requests{}}
  end

  @doc """
  Nothing will come any more. A last line without a newline is one too, but no answer to a request: the
  process may have been killed in the middle of it.
  """
  def closed(%__MODULE__{} = output) do
    with %Lines{} = lines <- output.lines,
         rest when rest != "" <- Lines.rest(lines),
         do: hand_on(output.deliver, output.id, rest)

    %{output | open?: false, lines: output.lines && Lines.new(output.lines.limit)}
  end

  @doc "The connection has failed: with `:emsgsize`, over a packet that is longer than it may be."
  def failed(output, :emsgsize), do: output |> closed() |> fault(:max_packet)
  def failed(output, _reason), do: closed(output)

  @doc "All that is still in the connection of a process that is gone."
  def drain(%__MODULE__{socket: socket, open?: true} = output, patience_ms) do
    receive do
      {:tcp, ^socket, data} -> output |> take(data) |> elem(1) |> drain(patience_ms)
      {:tcp_closed, ^socket} -> closed(output)
      {:tcp_error, ^socket, reason} -> failed(output, reason)
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
