defmodule Snakepit.Worker.Requests do
  @moduledoc false

  # Those who have asked a worker's process for something, and which answer is whose.
  #
  # So many requests are with the process at a time. Their answers come in the order of the requests, or each has the
  # tag of its request before it. The place of a request is free when its answer has come, also if the caller has
  # stopped waiting: an answer that is late belongs to that caller and is dropped, and one that never comes keeps
  # others from taking the next one for theirs.
  #
  # Nothing here has an effect: who calls this sends what it returns, and tells it when a time is up.

  defmodule Request do
    @moduledoc false
    @enforce_keys [:ref, :from, :data]
    defstruct [:ref, :from, :data]
  end

  defstruct in_flight: 1,
            tag_bytes: nil,
            sent: %{},
            oldest: 0,
            next: 0,
            waiting: :queue.new(),
            answered: 0

  @typedoc """
  `sent` are with the process, by number; the `from` of one is `nil` once its caller has stopped waiting. In order,
  numbers count up from `oldest`. With `tag_bytes` a number is the tag, and is used again when it is free.
  """
  @type t :: %__MODULE__{
          in_flight: pos_integer(),
          tag_bytes: pos_integer() | nil,
          sent: %{non_neg_integer() => {ref(), GenServer.from() | nil}},
          oldest: non_neg_integer(),
          next: non_neg_integer(),
          waiting: :queue.queue(%Request{}),
          answered: non_neg_integer()
        }

  @typedoc "Whatever its caller knows a request by."
  @type ref :: term()

  @typedoc "A request by its reference, and who waits for the answer."
  @type asked :: {ref(), GenServer.from() | nil}

  @doc "At most `in_flight` are with the process at a time, which the tags must be enough for."
  @spec new(pos_integer(), pos_integer() | nil) :: t()
  def new(in_flight, tag_bytes \\ nil),
    do: %__MODULE__{in_flight: in_flight, tag_bytes: tag_bytes}

  @doc "Adds a request. Returns what is to be sent now."
  @spec add(t(), ref(), GenServer.from(), binary()) :: {[iodata()], t()}
  def add(requests, ref, from, data) do
    request = %Request{ref: ref, from: from, data: data}

    # With room in flight nobody waits.
    if map_size(requests.sent) < requests.in_flight,
      do: send_one(requests, request),
      else: {[], %{requests | waiting: :queue.in(request, requests.waiting)}}
  end

  @doc "The process has written a packet. Returns whose it is, the answer in it, and what is to be sent next."
  @spec answered(t(), binary()) :: {asked(), binary(), [iodata()], t()} | :unexpected
  def answered(%{tag_bytes: nil, oldest: oldest} = requests, packet) do
    case requests.sent do
      %{^oldest => asked} -> answer(%{requests | oldest: oldest + 1}, oldest, asked, packet)
      _nothing_asked -> :unexpected
    end
  end

  def answered(%{tag_bytes: tag_bytes}, packet) when byte_size(packet) < tag_bytes,
    do: :unexpected

  def answered(%{tag_bytes: tag_bytes, sent: sent} = requests, packet) do
    tag = packet |> binary_part(0, tag_bytes) |> :binary.decode_unsigned()

    case sent do
      %{^tag => asked} ->
        payload = binary_part(packet, tag_bytes, byte_size(packet) - tag_bytes)
        answer(requests, tag, asked, payload)

      _nobodys ->
        :unexpected
    end
  end

  defp answer(requests, number, asked, payload) do
    sent = Map.delete(requests.sent, number)
    {data, requests} = send_next(%{requests | sent: sent, answered: requests.answered + 1})
    {asked, payload, data, requests}
  end

  @doc """
  The time of a request is up, or its caller is gone. `:late` if the process owes its answer, `:dropped` if the
  process has not been asked yet or has answered.
  """
  @spec expired(t(), ref()) :: {:late | :dropped, t()}
  def expired(requests, ref) do
    case number(requests, ref) do
      nil ->
        waiting = :queue.filter(&(&1.ref != ref), requests.waiting)
        {:dropped, %{requests | waiting: waiting}}

      number ->
        {:late, %{requests | sent: %{requests.sent | number => {ref, nil}}}}
    end
  end

  @doc "Whether the process still owes the answer to that request."
  @spec owes?(t(), ref()) :: boolean()
  def owes?(requests, ref), do: number(requests, ref) != nil

  @doc "The number, or tag, of a request that is with the process; `nil` if it is not."
  @spec number(t(), ref()) :: non_neg_integer() | nil
  def number(%{sent: sent}, ref),
    do: Enum.find_value(sent, fn {number, {other, _from}} -> other == ref && number end)

  @doc "Whether nobody has asked for anything."
  @spec idle?(t()) :: boolean()
  def idle?(%{sent: sent}), do: map_size(sent) == 0

  @doc "Those who wait for the process, and those whose requests it has not been sent."
  @spec callers(t()) :: {[GenServer.from()], [GenServer.from()]}
  def callers(%{sent: sent, waiting: waiting}) do
    {for({_number, {_ref, from}} <- sent, from != nil, do: from),
     for(%{from: from} <- :queue.to_list(waiting), do: from)}
  end

  @doc "The references of those that somebody still waits for."
  @spec awaited(t()) :: [ref()]
  def awaited(%{sent: sent, waiting: waiting}) do
    for({_number, {ref, from}} <- sent, from != nil, do: ref) ++
      for(%{ref: ref} <- :queue.to_list(waiting), do: ref)
  end

  @doc "The references of all requests."
  @spec refs(t()) :: [ref()]
  def refs(%{sent: sent, waiting: waiting}) do
    for({_number, {ref, _from}} <- sent, do: ref) ++
      for(%{ref: ref} <- :queue.to_list(waiting), do: ref)
  end

  # There is at most one to send: one place is free, or one has come.
  defp send_next(%{sent: sent, in_flight: most} = requests) when map_size(sent) >= most,
    do: {[], requests}

  defp send_next(requests) do
    case :queue.out(requests.waiting) do
      {{:value, request}, waiting} -> send_one(%{requests | waiting: waiting}, request)
      {:empty, _none} -> {[], requests}
    end
  end

  defp send_one(requests, request) do
    number = free(requests, requests.next)
    sent = Map.put(requests.sent, number, {request.ref, request.from})
    {[tagged(request.data, number, requests)], %{requests | sent: sent, next: number + 1}}
  end

  defp tagged(data, _number, %{tag_bytes: nil}), do: data

  defp tagged(data, number, %{tag_bytes: tag_bytes}),
    do: <<number::size(tag_bytes)-unit(8), data::binary>>

  # Order: all tags come by before one is used again, so that a mistake of the process is noticed and not believed.
  # There is a free one, because there are at least as many as may be in flight.
  defp free(%{tag_bytes: nil}, number), do: number

  defp free(%{tag_bytes: tag_bytes, sent: sent} = requests, number) do
    number = rem(number, Integer.pow(256, tag_bytes))
    if is_map_key(sent, number), do: free(requests, number + 1), else: number
  end
end
