defmodule Snakepit.Worker.Input do
  @moduledoc false

  # What goes into a worker's standard input.
  #
  # The worker writes by itself what fits into the pipe at once. Everything else is written by a process of its own, in
  # order, because a worker may be busy for long with what it reads: whoever passes its output on is called in there.
  #
  # Many short packets that come at once are written together: to write, and so to wake the process that reads, takes
  # longer than everything else that a request needs.

  alias Snakepit.{Error, Pipe}
  alias Snakepit.Output.Packets
  alias Snakepit.Worker.Input.Writer
  alias Snakepit.Worker.Keyboard

  # What a pipe holds, and so the longest that may be written in one go.
  @at_once_bytes 65_536
  # The longest that there is.
  @header_bytes 4

  defmodule Job do
    @moduledoc false
    # Data in parts; who waits until it is written, and until when. What is `whole` is written to its end once it has
    # been begun: the process would take what comes next for the rest of it.
    @enforce_keys [:from, :parts, :deadline, :whole?]
    defstruct [:from, :parts, :deadline, :whole?, :timer, written: 0]

    @type t :: %__MODULE__{}
  end

  @enforce_keys [:writer, :pipe, :packet, :longest]
  defstruct [
    :writer,
    :pipe,
    :packet,
    :longest,
    :keyboard,
    pending: 0,
    outbox: [],
    outbox_bytes: 0
  ]

  @typedoc """
  `pending` is how much the writer has to do still, `longest` how long a packet can be. In the `outbox`, the last one
  first, are packets that are written together. A terminal has a `keyboard`.
  """
  @type t :: %__MODULE__{
          writer: pid(),
          pipe: Pipe.t(),
          packet: :raw | :line | 1 | 2 | 4 | nil,
          longest: pos_integer() | :infinity,
          keyboard: Keyboard.t() | nil,
          pending: non_neg_integer(),
          outbox: [iodata()],
          outbox_bytes: non_neg_integer()
        }

  @doc "Types at the terminal, which the caller owns."
  @spec at_terminal(Pipe.t()) :: t()
  def at_terminal(terminal), do: %{start_link(terminal, nil) | keyboard: %Keyboard{}}

  @doc "Writes to the pipe, which the caller owns; `packet` is how what is written is cut into packets."
  @spec start_link(Pipe.t(), :raw | :line | 1 | 2 | 4 | nil) :: t()
  def start_link(pipe, packet) do
    longest = if is_integer(packet), do: Integer.pow(256, packet) - 1, else: :infinity
    writer = Writer.start_link(pipe)
    %__MODULE__{pipe: pipe, packet: packet, longest: longest, writer: writer}
  end

  @doc "Writes data until `deadline`, a monotonic time; then answers `from`, if there is anybody."
  @spec write(t(), GenServer.from() | nil, binary(), integer() | :infinity) :: t()
  def write(input, from, data, deadline) do
    whole? = input.packet not in [nil, :raw]
    job = %Job{from: from, parts: parts(data, input.packet), deadline: deadline, whole?: whole?}
    input |> typed(data) |> flush() |> start(job)
  end

  defp typed(%{keyboard: nil} = input, _data), do: input
  defp typed(input, data), do: %{input | keyboard: Keyboard.typed(input.keyboard, data)}

  @doc """
  Writes packets that nobody waits for together with those that come before the caller of this has dealt with its
  messages: then it hears `{Snakepit.Worker.Input, :flush}`.
  """
  @spec write_soon(t(), [binary()]) :: t()
  def write_soon(input, packets) do
    if input.outbox == [], do: send(self(), {__MODULE__, :flush})

    Enum.reduce(packets, input, fn data, input ->
      if input.outbox_bytes + byte_size(data) + @header_bytes > @at_once_bytes,
        do: write(input, nil, data, :infinity),
        else: put(input, data)
    end)
  end

  defp put(input, data) do
    size = input.outbox_bytes + byte_size(data) + @header_bytes
    %{input | outbox: [frame(data, input.packet) | input.outbox], outbox_bytes: size}
  end

  @doc "Writes what is in the outbox."
  @spec flush(t()) :: t()
  def flush(%{outbox: []} = input), do: input

  def flush(%{outbox: outbox} = input) do
    parts = [outbox |> Enum.reverse() |> IO.iodata_to_binary()]
    job = %Job{from: nil, parts: parts, deadline: :infinity, whole?: true}
    start(%{input | outbox: [], outbox_bytes: 0}, job)
  end

  defp frame(data, header) when is_integer(header), do: Packets.frame(data, header)
  defp frame(data, _line), do: data

  # Order: behind what the writer has.
  defp start(%{pending: 0} = input, %{parts: [data]} = job)
       when byte_size(data) <= @at_once_bytes do
    case Pipe.write_now(input.pipe, data) do
      {:ok, written} when written == byte_size(data) ->
        answer(job, :ok)
        input

      {:ok, written} ->
        rest = binary_part(data, written, byte_size(data) - written)
        hand_over(input, %{job | parts: [rest], written: written})

      :again ->
        hand_over(input, job)

      {:error, reason} ->
        answer(job, {:error, reason})
        input
    end
  end

  defp start(input, %{parts: []} = job), do: tap(input, fn _ -> answer(job, :ok) end)
  defp start(input, job), do: hand_over(input, job)

  defp hand_over(input, job), do: tell(input, {:write, job})

  # The length goes out together with the beginning: a process that waits for it would be woken twice.
  defp parts(data, header) when is_integer(header) do
    room = @at_once_bytes - header

    if byte_size(data) <= room do
      [data |> Packets.frame(header) |> IO.iodata_to_binary()]
    else
      [length, data] = Packets.frame(data, header)
      rest = binary_part(data, room, byte_size(data) - room)
      [length <> binary_part(data, 0, room), rest]
    end
  end

  defp parts("", _raw_or_line), do: []
  defp parts(data, _raw_or_line), do: [data]

  @doc "Ends the input after what was written before, then answers `from`."
  @spec shutdown(t(), GenServer.from()) :: t()
  def shutdown(%{keyboard: %Keyboard{}} = input, from) do
    case Keyboard.end_of_file(input.keyboard, input.pipe) do
      {:ok, characters} ->
        write(input, from, characters, :infinity)

      {:error, reason} ->
        answer(%Job{from: from, parts: [], deadline: :infinity, whole?: false}, {:error, reason})
        input
    end
  end

  def shutdown(input, from) do
    case flush(input) do
      %{pending: 0} = input ->
        GenServer.reply(from, Pipe.close(input.pipe))
        input

      input ->
        tell(input, {:shutdown, from})
    end
  end

  @doc "The writer has written one of those that it had."
  @spec written(t(), pid()) :: t()
  def written(%{writer: writer} = input, writer), do: %{input | pending: input.pending - 1}
  def written(input, _of_another_process), do: input

  @doc "Closes it. Those whose data has not been written get an error."
  @spec close(t()) :: :ok
  def close(input) do
    Process.unlink(input.writer)
    # Order: what is being written, and everything before the last message, fails at once then.
    Pipe.close(input.pipe)
    send(input.writer, :close)
    :ok
  end

  defp tell(input, message) do
    send(input.writer, message)
    %{input | pending: input.pending + 1}
  end

  @doc "Tells who waits for it what has become of a job."
  @spec answer(Job.t(), :ok | {:error, :epipe | :closed | :timeout}) :: :ok
  def answer(%{from: nil}, _result), do: :ok
  def answer(job, :ok), do: GenServer.reply(job.from, :ok)

  def answer(job, {:error, reason}) do
    error = %Error{
      operation: :write,
      reason: reason,
      written: job.written,
      detail: detail(reason, job)
    }

    GenServer.reply(job.from, {:error, error})
  end

  defp detail(:timeout, %{written: 0}),
    do: "the process does not read its input; nothing was written"

  defp detail(:timeout, %{whole?: true}),
    do: "the process does not read its input; what was begun is written to its end when it does"

  defp detail(:timeout, %{written: written}),
    do: "the process does not read its input; #{written} bytes were written, and no more will be"

  defp detail(:epipe, _job), do: "nobody reads the input any more (epipe)"
  defp detail(:closed, _job), do: "the input was closed"
end
