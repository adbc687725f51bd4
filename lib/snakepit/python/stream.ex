defmodule Snakepit.Python.Stream do
  @moduledoc false

  # A generator of Python as a lazy stream.
  #
  # Its request is in flight for as long as it runs: the answer is the end of it, and if the reader dies the worker has it
  # canceled like any other. Items come beside it, as messages from the worker, no more than there is credit for. When
  # half of that is used up, the reader gives as much again. Items and answer have the same sender, so they come in order.

  alias Snakepit.{Error, Pool, Worker}
  alias Snakepit.Python.{Caller, Codec, Protocol, Runtime}

  # What a generator may take to end when nobody wants more of it. Then its worker is replaced.
  @close_timeout 2_000

  @enforce_keys [:pool, :worker, :lease, :id, :request, :half, :timeout]
  defstruct [
    :pool,
    :worker,
    :lease,
    :id,
    :request,
    :half,
    :timeout,
    :failure,
    used: 0,
    ended?: false
  ]

  @doc "A stream of the request that `encode` returns for an id and the credit that it begins with."
  @spec new(Pool.pool(), map(), map(), (pos_integer(), pos_integer() -> term())) ::
          Enumerable.t()
  def new(pool, pool_opts, opts, encode),
    do: Stream.resource(fn -> open(pool, pool_opts, opts, encode) end, &next/1, &close/1)

  defp open(pool, pool_opts, opts, encode) do
    id = Runtime.enter()

    with {:ok, packet, _none} <- encode.(id, opts.ahead),
         {:ok, worker, lease} <- Pool.lend(pool, Map.put(pool_opts, :timeout, opts.timeout)) do
      # It has others too: see `Caller`.
      if Runtime.shared?(pool), do: Pool.give_back(pool, lease)

      %__MODULE__{
        pool: pool,
        worker: worker,
        lease: lease,
        id: id,
        request: Worker.begin_request(worker, packet),
        half: max(div(opts.ahead, 2), 1),
        timeout: opts.timeout
      }
    else
      {:error, error} ->
        Runtime.leave(id)
        raise error
    end
  end

  defp next(%{ended?: true} = stream), do: {:halt, stream}

  defp next(%{id: id, request: request} = stream) do
    receive do
      {Runtime, ^id, item} ->
        {[item(stream, item)], used(stream)}

      {^request, answer} ->
        ended(stream, answer)

      {:DOWN, ^request, :process, _worker, reason} ->
        error = Error.from_exit(reason)
        error = %{error | operation: :stream, reason: :worker_down}
        {:halt, %{stream | ended?: true, failure: error}}
    after
      stream.timeout -> raise late()
    end
  end

  defp late do
    detail = "no item came within its :timeout"
    %Error{operation: :stream, reason: :timeout, detail: detail}
  end

  defp item(stream, message) do
    case Codec.decode(message) do
      {:ok, item, fds} ->
        Protocol.mapped(stream.worker, fds)
        item

      {:error, error} ->
        raise error
    end
  end

  defp used(%{used: used, half: half} = stream) when used + 1 < half,
    do: %{stream | used: used + 1}

  defp used(stream) do
    # A worker that is gone says so by itself.
    Protocol.credit(stream.worker, stream.id, stream.half)
    %{stream | used: 0}
  end

  defp ended(stream, answer) do
    Process.demonitor(stream.request, [:flush])
    stream = %{stream | ended?: true}

    with {:ok, packet} <- answer, {:ok, nil, []} <- Protocol.answer(packet) do
      {:halt, stream}
    else
      failure ->
        {:error, error} = Caller.result(failure, :stream)
        {:halt, %{stream | failure: error}}
    end
  end

  # Order: what it failed with is raised when everything is given back. Whoever raises before is closed as it was then.
  defp close(%{ended?: true} = stream) do
    Runtime.leave(stream.id)
    Pool.give_back(stream.pool, stream.lease)
    if stream.failure, do: raise(stream.failure)
  end

  # Order: the worker is given back when the generator is closed, and not while it still runs for nobody.
  defp close(%{request: request} = stream) do
    Protocol.close(stream.worker, stream.id)

    receive do
      {^request, _answer} -> Process.demonitor(request, [:flush])
      {:DOWN, ^request, :process, _worker, _reason} -> :ok
    after
      @close_timeout ->
        Process.demonitor(request, [:flush])
        Pool.restart_worker(stream.pool, stream.worker, force: true)
    end

    close(%{stream | ended?: true})
  end
end
