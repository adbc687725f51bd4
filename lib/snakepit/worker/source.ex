defmodule Snakepit.Worker.Source do
  @moduledoc false

  # One of the output streams of a worker's process: reads its pipe, cuts what comes into pieces, and passes them on as
  # they are wanted. That is
  #
  #   * at once, one piece after the other: a process that writes faster waits in its own `write`;
  #   * so many, after which nothing is read until there is demand again (`activate/2`);
  #   * what a reader has asked for (`ask/4`), and nothing is read while nobody asks.

  alias Snakepit.{Error, Pipe}
  alias Snakepit.Output.{Buffer, Framing, Lines, Sink, Tail}
  alias Snakepit.Worker.{Readers, Viewer}

  # How many chunks are read before the worker looks at its other messages.
  @chunks 8
  # How long an answer is waited for actively, and after how many requests again, if it has not come that soon.
  @briefly_us 100
  @unawaited 16
  # How much is cut and passed on at a time. Of a whole chunk of short lines the worker's heap grows to megabytes,
  # and to copy those again and again takes longer than to cut them.
  @slice_bytes 4_096

  @enforce_keys [:pipe, :limit]
  defstruct [
    :pipe,
    :sink,
    :framing,
    :tail,
    :limit,
    :fault,
    :viewer,
    demand: :all,
    tells_end?: false,
    unawaited: 0,
    moment: nil,
    open?: true,
    ended?: false,
    buffer: %Buffer{},
    readers: %Readers{},
    timers: %{}
  ]

  @typedoc """
  Without a `sink` it is read on demand. `unawaited` is of how many requests the answer is not waited for. With a
  `moment` it is read again when that is over, and not watched until then; `:busy` if answers have come since it began.
  `fault` is that a line or packet was
  too long. `ended?` once those who get it know that nothing will come any more.
  """
  @type t :: %__MODULE__{
          pipe: Pipe.t(),
          sink: Sink.t() | nil,
          framing: Framing.t(),
          tail: Tail.t() | nil,
          limit: pos_integer(),
          fault: :max_packet | nil,
          viewer: Viewer.t() | nil,
          demand: :all | non_neg_integer(),
          tells_end?: boolean(),
          unawaited: non_neg_integer(),
          moment: nil | :quiet | :busy,
          open?: boolean(),
          ended?: boolean(),
          buffer: Buffer.t(),
          readers: Readers.t(),
          timers: %{reference() => reference()}
        }

  @doc "Begins to read the pipe, which the caller owns."
  @spec new(Pipe.t(), keyword()) :: t()
  def new(pipe, fields) do
    source = struct!(%__MODULE__{pipe: pipe, limit: fields[:limit]}, fields)
    kind = if source.framing, do: :pieces, else: :bytes
    if source.sink, do: Pipe.read_later(pipe)
    %{source | buffer: Buffer.new(kind)}
  end

  @doc """
  There is something to read: reads it while there is demand; a message says when there is more. `deliver` is given
  pieces that go out at once, the source and `acc`, and returns both.
  """
  @spec read(t(), acc, ([binary()], t(), acc -> {t(), acc})) :: {t(), acc} when acc: term()
  def read(source, acc, deliver \\ &put/3)
  def read(%{open?: false} = source, acc, _deliver), do: {source, acc}

  def read(source, acc, deliver) do
    cond do
      # It is read again when the viewer has caught up.
      Viewer.behind?(source.viewer) ->
        {source, acc}

      is_struct(source.sink, Sink) and source.demand == :all ->
        push(source, acc, deliver, @chunks)

      true ->
        {advance(source, @chunks), acc}
    end
  end

  @doc "As `read/3`, right before a request. Returns at once if there is nothing to read."
  @spec read_unasked(t(), acc, ([binary()], t(), acc -> {t(), acc})) :: {t(), acc}
        when acc: term()
  def read_unasked(%{open?: true} = source, acc, deliver) do
    if Pipe.await(source.pipe, 0), do: read(source, acc, deliver), else: {source, acc}
  end

  def read_unasked(source, acc, _deliver), do: {source, acc}

  @doc """
  Right after a request: waits for the answer for some microseconds, if the last ones have come that soon. Returns
  `:once` if one chunk was read, and `:watched` if a message will say when there is something.
  """
  @spec read_answer(t(), acc, ([binary()], t(), acc -> {t(), acc})) ::
          {:once | :watched, t(), acc}
        when acc: term()
  def read_answer(%{sink: %Sink{}, demand: :all, open?: true, viewer: nil} = source, acc, deliver) do
    cond do
      source.unawaited > 0 ->
        {:watched, %{source | unawaited: source.unawaited - 1}, acc}

      Pipe.await(source.pipe, @briefly_us) ->
        {source, acc} = source |> look_again() |> read_once(acc, deliver)
        {:once, source, acc}

      true ->
        {source, acc} = read(%{source | unawaited: @unawaited}, acc, deliver)
        {:watched, source, acc}
    end
  end

  def read_answer(source, acc, _deliver), do: {:watched, source, acc}

  # What comes unasked is heard a moment later. To have the runtime watch the pipe between one request and the next one
  # takes as long as all the rest.
  defp look_again(%{moment: nil} = source) do
    Pipe.read_in_a_moment(source.pipe)
    %{source | moment: :busy}
  end

  defp look_again(source), do: %{source | moment: :busy}

  @doc "A moment is over: reads what there is, or begins another one if answers have come meanwhile."
  @spec moment_over(t(), acc, ([binary()], t(), acc -> {t(), acc})) :: {t(), acc}
        when acc: term()
  def moment_over(%{moment: :busy, open?: true} = source, acc, _deliver) do
    Pipe.read_in_a_moment(source.pipe)
    {%{source | moment: :quiet}, acc}
  end

  def moment_over(source, acc, deliver), do: read(%{source | moment: nil}, acc, deliver)

  defp read_once(source, acc, deliver) do
    case Pipe.read_now(source.pipe) do
      {:ok, data} -> pass_on(source, data, acc, deliver)
      :closed -> {end_of(source), acc}
      :again -> {source, acc}
    end
  end

  @doc "Passes pieces on to whoever the output is for."
  @spec put([binary()], t(), acc) :: {t(), acc} when acc: term()
  def put(pieces, source, acc), do: {put(source, pieces), acc}

  defp put(source, pieces), do: %{source | sink: Sink.put(source.sink, pieces)}

  # Order: others first. A process that writes without end would keep them waiting.
  defp push(source, acc, _deliver, 0) do
    Pipe.read_later(source.pipe)
    {source, acc}
  end

  defp push(source, acc, deliver, left) do
    case Pipe.read_now(source.pipe) do
      {:ok, data} ->
        {source, acc} = pass_on(source, data, acc, deliver)
        push(source, acc, deliver, left - 1)

      :closed ->
        {end_of(source), acc}

      :again ->
        {source, acc}
    end
  end

  defp pass_on(%{framing: framing} = source, data, acc, deliver)
       when byte_size(data) > @slice_bytes and (is_tuple(framing) or is_struct(framing, Lines)) do
    slice = binary_part(data, 0, @slice_bytes)
    {source, acc} = pass_on(source, slice, acc, deliver)
    rest = binary_part(data, @slice_bytes, byte_size(data) - @slice_bytes)
    pass_on(source, rest, acc, deliver)
  end

  defp pass_on(source, data, acc, deliver) do
    {pieces, source} = take(source, data)
    deliver.(pieces, source, acc)
  end

  defp end_of(source) do
    {rest, source} = closed(source)
    tell_end(put(source, rest))
  end

  # Hands out what there is, and reads more if that is not enough.
  defp advance(source, left) do
    source = hand_out(source)

    cond do
      not source.open? or not wanted?(source) ->
        source

      left == 0 ->
        Pipe.read_later(source.pipe)
        source

      true ->
        case Pipe.read_now(source.pipe) do
          {:ok, data} -> source |> hold_more(data) |> advance(left - 1)
          :closed -> source |> hold_end() |> advance(left)
          :again -> source
        end
    end
  end

  defp hold_more(source, data) do
    {pieces, source} = take(source, data)
    %{source | buffer: Buffer.add(source.buffer, pieces)}
  end

  defp hold_end(source) do
    {rest, source} = closed(source)
    %{source | buffer: source.buffer |> Buffer.add(rest) |> Buffer.finish()}
  end

  defp wanted?(%{sink: nil, readers: readers}), do: Readers.any?(readers)
  defp wanted?(%{demand: demand}), do: demand == :all or demand > 0

  defp hand_out(%{sink: nil} = source) do
    {served, readers, buffer} = Readers.serve(source.readers, source.buffer, source.limit)
    Enum.reduce(served, %{source | readers: readers, buffer: buffer}, &answer/2)
  end

  defp hand_out(%{demand: 0} = source), do: tell_end(source)

  defp hand_out(source) do
    case Buffer.take(source.buffer, :any) do
      {:ok, piece, buffer} -> %{source | buffer: buffer} |> put([piece]) |> count() |> hand_out()
      {_more_or_eof, _buffer} -> tell_end(source)
    end
  end

  defp count(%{demand: :all} = source), do: source

  defp count(%{demand: demand} = source) do
    if demand == 1, do: Sink.tell(source.sink, :passive)
    %{source | demand: demand - 1}
  end

  # Once, and behind everything else.
  defp tell_end(%{ended?: false, open?: false} = source) do
    if Buffer.empty?(source.buffer) do
      if source.tells_end?, do: Sink.tell(source.sink, :eof)
      %{source | ended?: true}
    else
      source
    end
  end

  defp tell_end(source), do: source

  # Order: after a fault nothing is a packet any more. What follows a line that is too long is its end.
  defp take(%{fault: fault} = source, data) when fault != nil, do: {[], keep(source, data)}
  defp take(source, data), do: source |> show(data) |> keep(data) |> cut(data)

  defp show(%{viewer: nil} = source, _data), do: source
  defp show(source, data), do: %{source | viewer: Viewer.show(source.viewer, data)}

  defp keep(%{tail: nil} = source, _data), do: source
  defp keep(source, data), do: %{source | tail: Tail.add(source.tail, data)}

  defp cut(source, data) do
    case Framing.cut(source.framing, data) do
      {:ok, pieces, framing} -> {pieces, %{source | framing: framing}}
      {:too_long, pieces, framing} -> {pieces, %{source | framing: framing, fault: :max_packet}}
    end
  end

  defp closed(source), do: {Framing.rest(source.framing), %{source | open?: false, framing: nil}}

  @doc "Has all that is still in the pipe of a process that is gone; what nobody has asked for waits here."
  @spec drain(t(), non_neg_integer(), acc, ([binary()], t(), acc -> {t(), acc})) :: {t(), acc}
        when acc: term()
  def drain(source, patience_ms, acc, deliver \\ &put/3)

  def drain(%{sink: %Sink{}, demand: :all, open?: true} = source, patience_ms, acc, deliver) do
    case Pipe.read(source.pipe, patience_ms) do
      {:ok, data} ->
        {source, acc} = pass_on(source, data, acc, deliver)
        drain(source, patience_ms, acc, deliver)

      # One that somebody outside its tree holds open has no more to say either.
      _closed_or_timeout ->
        {end_of(source), acc}
    end
  end

  def drain(source, patience_ms, acc, _deliver),
    do: {hand_out(hold_rest(source, patience_ms)), acc}

  defp hold_rest(%{open?: false} = source, _patience_ms), do: source

  defp hold_rest(source, patience_ms) do
    case Pipe.read(source.pipe, patience_ms) do
      {:ok, data} -> source |> hold_more(data) |> hold_rest(patience_ms)
      _closed_or_timeout -> hold_end(source)
    end
  end

  @doc "`from` asks for output, and waits for it until `deadline`, a monotonic time."
  @spec ask(t(), GenServer.from(), Buffer.what(), integer() | :infinity) :: t()
  def ask(source, {pid, _tag} = from, what, deadline) do
    ref = Process.monitor(pid)

    timers =
      if deadline == :infinity,
        do: source.timers,
        else: Map.put(source.timers, ref, timer(ref, deadline))

    readers = Readers.add(source.readers, {ref, from, what})
    advance(%{source | readers: readers, timers: timers}, @chunks)
  end

  # Order: what is there is handed out first, also to one that does not wait at all.
  defp timer(ref, deadline),
    do: :erlang.start_timer(deadline, self(), {:read_timeout, ref}, abs: true)

  defp answer({{ref, from, _what}, answer}, source) do
    source = release(source, ref)
    GenServer.reply(from, reply(answer, source.fault))
    if answer == :eof, do: %{source | ended?: true}, else: source
  end

  defp reply(:too_long, _fault),
    do: too_long("there is no newline within :max_packet bytes; they can be read as bytes")

  # What came last was not read.
  defp reply(:eof, :max_packet), do: too_long("a line or packet was longer than :max_packet")
  defp reply(answer, _fault), do: answer

  defp too_long(detail),
    do: {:error, %Error{operation: :read, reason: :max_packet, detail: detail}}

  defp release(source, ref) do
    Process.demonitor(ref)
    {timer, timers} = Map.pop(source.timers, ref)
    if timer, do: :erlang.cancel_timer(timer)
    %{source | timers: timers}
  end

  @doc "A reader has waited long enough, or is gone: what it would have got is the next one's."
  @spec give_up(t(), reference()) :: t()
  def give_up(source, ref) do
    case Readers.remove(source.readers, ref) do
      {nil, _readers} ->
        source

      {{ref, from, _what}, readers} ->
        GenServer.reply(from, {:error, %Error{operation: :read, reason: :timeout}})
        advance(release(%{source | readers: readers}, ref), @chunks)
    end
  end

  @doc "Passes on so many pieces more, or all that come."
  @spec activate(t(), pos_integer() | :all) :: t()
  def activate(source, :all), do: go_on(%{source | demand: :all})
  def activate(%{demand: :all} = source, count), do: %{source | demand: count}
  def activate(source, count), do: go_on(%{source | demand: source.demand + count})

  # Order: what is held comes before what is read.
  defp go_on(source), do: advance(source, @chunks)

  @doc "Closes the pipe. What has been read and not been taken is still there."
  @spec close(t()) :: t()
  def close(source) do
    Pipe.close(source.pipe)
    if source.sink, do: Sink.close(source.sink)
    Viewer.close(source.viewer)
    %{source | open?: false, viewer: nil, buffer: Buffer.finish(source.buffer)}
  end

  @doc "Whether there is output that waits until somebody asks for it, or its end that nobody has been told."
  @spec unread?(t() | nil) :: boolean()
  def unread?(%__MODULE__{sink: nil, ended?: ended?}), do: not ended?
  def unread?(%__MODULE__{demand: demand, ended?: ended?}), do: demand != :all and not ended?
  def unread?(nil), do: false

  @doc "Fails those who wait."
  @spec fail(t(), Error.t()) :: :ok
  def fail(source, error) do
    for {_ref, from, _what} = reader <- Readers.all(source.readers) do
      release(source, elem(reader, 0))
      GenServer.reply(from, {:error, error})
    end

    :ok
  end
end
