defmodule Snakepit.Worker.Output do
  @moduledoc false

  # The pipes to a worker's standard streams: what comes out of them and who gets it, and the end of it for the log
  # (`Source`); which of it answers whom (`Requests`); and what goes in (`Input`).

  alias Snakepit.{Error, Pipe, Stdio}
  alias Snakepit.Worker.{Alarm, Deadline, Expiry, Input, Options}
  alias Snakepit.Worker.{Requests, Source, Sources, Terminal}
  alias Snakepit.Output.{File, Sink, Tail}

  @enforce_keys [:kind, :packet]
  defstruct [
    :kind,
    :packet,
    :source,
    :error,
    :input,
    :fault,
    :alarm,
    :on_late,
    requests: %Requests{}
  ]

  @typedoc """
  `source` and `error` are the output streams that pass through the BEAM. `fault` is what the process has done that
  leaves nobody sure of its answers: the worker ends with it. The `alarm` goes off when the time of a request may be up.
  """
  @type t :: %__MODULE__{
          kind: :pipe | :stream,
          packet: :raw | :line | 1 | 2 | 4 | nil,
          source: Source.t() | nil,
          error: Source.t() | nil,
          input: Input.t() | nil,
          requests: Requests.t(),
          alarm: Alarm.t(),
          on_late: (non_neg_integer() -> term()) | nil,
          fault: :max_packet | :unexpected_output | nil
        }

  # Its file is opened before the process starts, so that it does not start without one.
  @doc "Opens the file that output is to go to, if there is one."
  @spec open_file(Options.t()) :: {:ok, Options.t()} | {:error, Error.t()}
  def open_file(%{stdio: {:passed_file, path, truncate?}} = options) do
    with {:ok, file} <- File.open(path, truncate?, options.id),
         do: {:ok, %{options | output: file}}
  end

  def open_file(options), do: {:ok, options}

  @doc "Begins to read. `nil` if output does not pass through the BEAM."
  def new(_options, %Stdio.Ends{output: nil, error: nil}), do: nil

  def new(options, %Stdio.Ends{} = ends) do
    %__MODULE__{
      kind: if(options.stdio == :pipe, do: :pipe, else: :stream),
      packet: options.packet,
      source: ends.output && Sources.output(options, ends.output),
      error: ends.error && Sources.error(options, ends.error),
      input: ends.input && input(options, ends.input),
      on_late: options.on_late,
      requests: Requests.new(options.in_flight, tag_bytes(options.tag))
    }
  end

  defp input(%{stdio: %Terminal{}}, terminal), do: Input.at_terminal(terminal)
  defp input(options, pipe), do: Input.start_link(pipe, options.packet)

  defp tag_bytes({:bytes, count}), do: count
  defp tag_bytes(nil), do: nil

  @doc "The runtime says that there is something to read in this pipe."
  @spec ready_to_read(t(), Pipe.t()) :: t()
  def ready_to_read(%{source: %{pipe: pipe, moment: moment}} = output, pipe) when moment != nil do
    # That was an answer, which has been read. The pipe is not watched again before the moment is over.
    if Requests.idle?(output.requests), do: output, else: read(output, pipe)
  end

  def ready_to_read(output, pipe), do: read(output, pipe)

  @doc "The worker wanted to look into this pipe again at this time."
  @spec moment_over(t(), Pipe.t()) :: t()
  def moment_over(%{source: %{pipe: pipe}} = output, pipe) do
    {source, output} = Source.moment_over(output.source, output, &deliver/3)
    with_source(output, source)
  end

  # Of a process that there was before.
  def moment_over(output, _pipe), do: output

  @doc "Reads what there is in this pipe, which is watched afterwards."
  @spec read(t(), Pipe.t()) :: t()
  def read(%{source: %{pipe: pipe}} = output, pipe) do
    {source, output} = Source.read(output.source, output, &deliver/3)
    with_source(output, source)
  end

  def read(%{error: %{pipe: pipe}} = output, pipe) do
    {source, nil} = Source.read(output.error, nil)
    %{output | error: source}
  end

  # Of a process that there was before.
  def read(output, _pipe), do: output

  @doc "As `read/2`; returns the pieces as well. For a worker of which nobody has asked anything yet."
  @spec listen(t(), Pipe.t()) :: {[binary()], t()}
  def listen(%{source: %{pipe: pipe}} = output, pipe) do
    {source, heard} =
      Source.read(output.source, [], fn pieces, source, heard ->
        {source, nil} = Source.put(pieces, source, nil)
        {source, [pieces | heard]}
      end)

    {heard |> Enum.reverse() |> Enum.concat(), with_source(output, source)}
  end

  def listen(output, pipe), do: {[], read(output, pipe)}

  defp with_source(output, source), do: with_fault(%{output | source: source})

  # The first one is why the worker ends.
  defp with_fault(%{source: nil} = output), do: output
  defp with_fault(output), do: %{output | fault: output.fault || output.source.fault}

  # A stream has no requests: all of it is for the sink, at once.
  defp deliver(pieces, source, %{input: nil} = output), do: Source.put(pieces, source, output)
  defp deliver([], source, output), do: {source, output}
  # Order: after a fault nothing is an answer any more.
  defp deliver(_pieces, source, %{fault: fault} = output) when fault != nil, do: {source, output}

  defp deliver([piece | others] = pieces, source, output) do
    case Requests.answered(output.requests, piece) do
      {{ref, from}, answer, next, requests} ->
        Expiry.release(ref)
        if from, do: GenServer.reply(from, {:ok, answer})
        deliver(others, source, send_all(%{output | requests: requests}, next))

      :unexpected ->
        unexpected(pieces, source, output)
    end
  end

  # A banner before the first request harms nobody. After that, a packet that answers nothing and that
  # nobody wants to see would be taken for the answer to the next request.
  defp unexpected(
         _pieces,
         %{sink: %{to: :quiet}} = source,
         %{requests: %{answered: count}} = output
       )
       when count > 0,
       do: {source, %{output | fault: output.fault || :unexpected_output}}

  defp unexpected(pieces, source, output) do
    # Order: with nothing asked none of the others is an answer either, and they go out together.
    if Requests.idle?(output.requests) do
      Source.put(pieces, source, output)
    else
      [piece | others] = pieces
      {source, output} = Source.put([piece], source, output)
      deliver(others, source, output)
    end
  end

  @doc "Writes data, then answers `from`."
  # Where packets that answer nothing have somebody who gets them, others may be written as well.
  def write(
        %__MODULE__{requests: %{tag_bytes: bytes}, source: %{sink: %{to: to}}} = output,
        from,
        _data,
        _deadline
      )
      when bytes != nil and not is_function(to, 1),
      do: refuse(output, from, :write, "its packets have a :tag, so that it takes requests only")

  def write(%__MODULE__{input: input} = output, from, data, deadline) when input != nil do
    if fits?(output, from, :write, data),
      do: %{output | input: Input.write(input, from, data, deadline)},
      else: output
  end

  def write(output, from, _data, _deadline),
    do: refuse(output, from, :write, "its :stdio is not :pipe")

  @doc "Sends data when there is room for it in flight. `from` gets the packet that answers it."
  def request(%__MODULE__{input: input} = output, from, data, deadline) when input != nil do
    cond do
      output.packet in [nil, :raw] ->
        needed = "it needs packet: :line, 1, 2 or 4, to know an answer's end"
        refuse(output, from, :request, needed)

      output.source.sink == nil or output.source.demand != :all ->
        refuse(output, from, :request, "its output waits until somebody asks for it")

      # It waited while the process was started again, and its caller has gone on.
      Deadline.past?(deadline) ->
        output

      fits?(output, from, :request, data) ->
        ask_process(read_unasked(output), from, data, deadline)

      true ->
        output
    end
  end

  def request(output, from, _data, _deadline),
    do: refuse(output, from, :request, "its :stdio is not :pipe")

  # Order: before the request is sent. What the process has written by then is no answer to it.
  defp read_unasked(output) do
    if Requests.idle?(output.requests) do
      {source, output} = Source.read_unasked(output.source, output, &deliver/3)
      with_source(output, source)
    else
      output
    end
  end

  # The worker ends, and its caller is told that.
  defp ask_process(%{fault: fault} = output, _from, _data, _deadline) when fault != nil,
    do: output

  defp ask_process(output, from, data, deadline) do
    ref = Expiry.watch(from, deadline, output.on_late != nil)
    {next, requests} = Requests.add(output.requests, ref, from, data)
    alarm = Alarm.set(output.alarm, deadline)
    output = send_all(%{output | requests: requests, alarm: alarm}, next)

    # Many in flight are worth more if their answers come together.
    if next != [] and requests.in_flight == 1, do: read_answer(output), else: output
  end

  defp read_answer(output) do
    {how_far, source, output} = Source.read_answer(output.source, output, &deliver/3)
    output = with_source(output, source)

    # A long answer comes in many chunks.
    if how_far == :once and not Requests.idle?(output.requests),
      do: read(output, source.pipe),
      else: output
  end

  defp fits?(output, from, operation, data) do
    size = byte_size(data) + if operation == :request, do: output.requests.tag_bytes || 0, else: 0
    longest = output.input.longest

    if size <= longest do
      true
    else
      detail =
        "a packet of #{size} bytes is too long for packet: #{output.packet}, " <>
          "whose length is at most #{longest}"

      error = %Error{operation: operation, reason: :emsgsize, detail: detail}
      GenServer.reply(from, {:error, error})
      false
    end
  end

  defp send_all(output, []), do: output

  # With one in flight there is nothing to wait for.
  defp send_all(%{requests: %{in_flight: 1}} = output, [data]),
    do: %{output | input: Input.write(output.input, nil, data, :infinity)}

  defp send_all(output, data), do: %{output | input: Input.write_soon(output.input, data)}

  @doc "Writes what has come together."
  def flush(%__MODULE__{input: input} = output) when input != nil,
    do: %{output | input: Input.flush(input)}

  def flush(output), do: output

  @doc "`from` gets what it asks of the output (`:source`) or of standard error (`:error`)."
  def ask(output, from, stream, what, deadline) do
    with {:ok, source} <- on_demand(output, stream), :ok <- readable(output, stream, what) do
      with_fault(Map.put(output, stream, Source.ask(source, from, what, deadline)))
    else
      {:error, detail} -> refuse(output, from, :read, detail)
    end
  end

  defp on_demand(output, stream) do
    case output && Map.fetch!(output, stream) do
      %Source{sink: nil} = source -> {:ok, source}
      _passed_on_or_elsewhere when stream == :source -> {:error, "its :output is not :read"}
      _passed_on_or_elsewhere -> {:error, "its :stderr is not :read"}
    end
  end

  defp readable(_output, _stream, :any), do: :ok
  defp readable(_output, :error, _what), do: :ok

  defp readable(%{packet: packet}, :source, what) do
    cond do
      packet in [nil, :raw] -> :ok
      packet == :line and what == :line -> :ok
      true -> {:error, "with packet: #{inspect(packet)} it can be read one packet at a time"}
    end
  end

  @doc "A reader has waited long enough, or is gone."
  def reader_gone(%__MODULE__{} = output, ref) do
    give_up = fn source -> source && Source.give_up(source, ref) end
    with_fault(%{output | source: give_up.(output.source), error: give_up.(output.error)})
  end

  def reader_gone(nil, _ref), do: nil

  @doc "Passes on so many pieces more."
  def activate(%__MODULE__{source: %Source{sink: %{to: {:send, _pid}}}} = output, from, count) do
    GenServer.reply(from, :ok)
    source = Source.activate(output.source, Sources.demand(count))
    with_source(output, source)
  end

  def activate(output, from, _count),
    do: refuse(output, from, :activate, "its :output is not {:send, pid}")

  @doc "Has output that goes to a file go to the one that has its name now."
  @spec reopen(t() | nil) :: {:ok | {:error, Error.t()}, t() | nil}
  def reopen(%__MODULE__{source: %Source{} = source} = output) do
    {answer, sink} = Sink.reopen(source.sink)
    {answer, %{output | source: %{source | sink: sink}}}
  end

  def reopen(output), do: {elem(Sink.reopen(nil), 0), output}

  @doc "The writer has written something: see `Snakepit.Worker.Input`."
  def written(%__MODULE__{input: input} = output, writer) when input != nil,
    do: %{output | input: Input.written(input, writer)}

  def written(output, _writer), do: output

  defp refuse(output, from, operation, detail) do
    GenServer.reply(from, {:error, %Error{operation: operation, reason: :einval, detail: detail}})
    output
  end

  @doc "Ends the process's standard input; answers `from`."
  def close_input(%__MODULE__{input: input} = output, from) when input != nil,
    do: %{output | input: Input.shutdown(input, from)}

  # There was none to begin with.
  def close_input(output, from) do
    GenServer.reply(from, :ok)
    output
  end

  @doc "All that is still in the pipes of a process that is gone."
  def drain(%__MODULE__{} = output, patience_ms) do
    output = if output.source, do: drain_source(output, patience_ms), else: output
    error = output.error && elem(Source.drain(output.error, patience_ms, nil), 0)
    %{output | error: error}
  end

  def drain(nil, _patience_ms), do: nil

  defp drain_source(output, patience_ms) do
    {source, output} = Source.drain(output.source, patience_ms, output, &deliver/3)
    with_source(output, source)
  end

  @doc "Closes the pipes, and fails those who wait for an answer. What has been read can still be taken."
  def close(nil, _detail), do: nil

  def close(%__MODULE__{} = output, detail) do
    if output.input, do: Input.close(output.input)
    error = %Error{operation: :request, reason: :worker_down, detail: detail}
    {asked, waiting} = Requests.callers(output.requests)
    for from <- asked, do: GenServer.reply(from, {:error, error})
    # Somebody else may be asked for what the process has not seen.
    for from <- waiting, do: GenServer.reply(from, {:error, %{error | written: 0}})
    Enum.each(Requests.refs(output.requests), &Expiry.release/1)
    Alarm.cancel(output.alarm)
    close = fn source -> source && close_source(source, error) end
    sources = %{source: close.(output.source), error: close.(output.error)}
    struct!(output, Map.merge(sources, %{input: nil, requests: %Requests{}, alarm: nil}))
  end

  defp close_source(source, error) do
    Source.fail(source, %{error | operation: :read})
    Source.close(source)
  end

  @doc "Whether there is output that waits until somebody asks for it, or its end."
  def unread?(%__MODULE__{source: source, error: error}),
    do: Source.unread?(source) or Source.unread?(error)

  def unread?(nil), do: false

  @doc """
  The end of what was written, with what the guardian kept of it: of standard error, if that is apart and anything
  was written there.
  """
  def tail(output, kept) do
    {first, last} = tails(output)
    Enum.find([first, kept], last, &(&1 != ""))
  end

  @doc "The tail as it is here: what comes before what the guardian has kept, and what counts if that is nothing."
  @spec tails(t() | nil) :: {binary(), binary()}
  def tails(nil), do: {"", ""}
  def tails(%__MODULE__{source: source, error: error}), do: {content(error), content(source)}

  defp content(%Source{tail: %Tail{} = tail}), do: Tail.content(tail)
  defp content(_none), do: ""
end
