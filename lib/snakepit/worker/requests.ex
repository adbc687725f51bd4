defmodule Snakepit.Worker.Requests do
  @moduledoc false

  # Those who have asked a worker's process for something, in the order in which they came.
  #
  # One request is with the process at a time. The next one is sent when the answer has come, also if the
  # caller has stopped waiting: an answer that is late belongs to that caller and is dropped, and an answer
  # that never comes keeps others from taking the one after it for theirs.

  defmodule Request do
    @moduledoc false
    @enforce_keys [:from, :data, :timer]
    defstruct [:from, :data, :timer]
  end

  defstruct sent: nil, waiting: :queue.new(), answered: 0

  @typedoc "`sent` is with the process; its `from` is `nil` once its caller has stopped waiting."
  @type t :: %__MODULE__{
          sent: %Request{} | nil,
          waiting: :queue.queue(%Request{}),
          answered: non_neg_integer()
        }

  @doc """
  Adds a request that is given up at `deadline` (a monotonic time in milliseconds, or `:infinity`): then
  `{:timeout, timer, :request_timeout}` comes. Returns what is to be sent now.
  """
  @spec add(t(), GenServer.from(), binary(), integer() | :infinity) :: {[binary()], t()}
  def add(requests, from, data, deadline) do
    # It waited while the process was started again, and its caller has gone on.
    if deadline <= System.monotonic_time(:millisecond),
      do: {[], requests},
      else: enqueue(requests, from, data, deadline)
  end

  defp enqueue(requests, from, data, deadline) do
    request = %Request{from: from, data: data, timer: timer(deadline)}
    send_next(%{requests | waiting: :queue.in(request, requests.waiting)})
  end

  defp timer(:infinity), do: make_ref()

  defp timer(deadline), do: :erlang.start_timer(deadline, self(), :request_timeout, abs: true)

  @doc "The process has written a packet. Returns whose it is and what is to be sent next."
  @spec answered(t()) :: {GenServer.from() | :nobody, [binary()], t()} | :unexpected
  def answered(%{sent: nil}), do: :unexpected

  def answered(%{sent: request} = requests) do
    :erlang.cancel_timer(request.timer)

    {data, requests} = send_next(%{requests | sent: nil, answered: requests.answered + 1})
    {request.from || :nobody, data, requests}
  end

  @doc """
  The time of a request is up. `:late` if the process owes its answer, `:dropped` if the process has not
  been asked yet or has answered.
  """
  @spec expired(t(), reference()) :: {:late | :dropped, t()}
  def expired(%{sent: %Request{timer: timer} = request} = requests, timer),
    do: {:late, %{requests | sent: %{request | from: nil}}}

  def expired(requests, timer) do
    waiting = :queue.filter(&(&1.timer != timer), requests.waiting)
    {:dropped, %{requests | waiting: waiting}}
  end

  @doc "Whether the process still owes the answer to that request."
  @spec owes?(t(), reference()) :: boolean()
  def owes?(requests, timer), do: match?(%{sent: %Request{timer: ^timer}}, requests)

  @doc "Those who still wait."
  @spec callers(t()) :: [GenServer.from()]
  def callers(requests) do
    all = [requests.sent | :queue.to_list(requests.waiting)]
    for %Request{from: from} when from != nil <- all, do: from
  end

  defp send_next(%{sent: nil} = requests) do
    case :queue.out(requests.waiting) do
      {{:value, request}, waiting} ->
        {[request.data], %{requests | sent: %{request | data: nil}, waiting: waiting}}

      {:empty, _none} ->
        {[], requests}
    end
  end

  defp send_next(requests), do: {[], requests}
end
