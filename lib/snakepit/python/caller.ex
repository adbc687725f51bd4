defmodule Snakepit.Python.Caller do
  @moduledoc false

  # A request to a pool, from its checkout to its answer.
  #
  # A worker that another caller's interrupted call still keeps busy may be replaced. What it has not been sent is asked of
  # another one; what it may have begun is not.

  alias Snakepit.{Error, Pool, Worker}
  alias Snakepit.Python.{Codec, Protocol, Runtime}

  @type result :: {:ok, term()} | {:error, Error.t() | Snakepit.Python.Error.t()}

  @doc """
  Sends the packet that `encode` returns, which is called again with `true` if the worker may not open memory files, and
  returns what the answer says.
  """
  @spec request(Pool.pool(), (boolean() -> term()), timeout(), map(), atom()) :: result()
  def request(pool, encode, timeout, pool_opts, operation) do
    with {:ok, packet, files} <- encode.(false) do
      deadline = if timeout == :infinity, do: :infinity, else: now() + timeout

      try do
        case attempt(pool, packet, deadline, pool_opts) do
          {:unable, :memory, _why} -> inline(pool, encode, deadline, pool_opts)
          answer -> answer
        end
      after
        Codec.close(files)
      end
      |> result(operation)
    end
  end

  defp inline(pool, encode, deadline, pool_opts) do
    with {:ok, packet, []} <- encode.(true), do: attempt(pool, packet, deadline, pool_opts)
  end

  defp attempt(pool, packet, deadline, pool_opts) do
    opts = Map.put(pool_opts, :timeout, left(deadline))

    case with_worker(pool, &ask(&1, packet, deadline), opts) do
      {:error, %Error{reason: :worker_down, written: 0}} ->
        attempt(pool, packet, deadline, pool_opts)

      {:bad_answer, worker, error} ->
        {:error, replace(pool, worker, error)}

      answer ->
        answer
    end
  end

  # Workers that do several calls at a time are lent only to find out whose turn it is: they count their calls
  # themselves.
  defp with_worker(pool, fun, pool_opts) do
    if Runtime.shared?(pool) do
      with {:ok, worker, lease} <- Pool.lend(pool, pool_opts) do
        Pool.give_back(pool, lease)
        fun.(worker)
      end
    else
      Pool.with_worker(pool, fun, pool_opts)
    end
  end

  # Order: what is mapped is told of before the worker is given back, which may be busy then.
  defp ask(worker, packet, deadline) do
    with {:ok, answer} <- Worker.request(worker, packet, left(deadline)) do
      case Protocol.answer(answer) do
        {:ok, value, fds} ->
          Protocol.mapped(worker, fds)
          {:ok, value}

        {:error, error} ->
          {:bad_answer, worker, error}

        other ->
          other
      end
    end
  end

  # Nobody can be sure of what it says next.
  defp replace(pool, worker, error) do
    Pool.restart_worker(pool, worker, force: true)
    error
  end

  @doc "What an answer, or its absence, means for the caller."
  @spec result(term(), atom()) :: result()
  def result({:ok, value}, _operation), do: {:ok, value}
  def result({:raised, error}, _operation), do: {:error, error}

  def result({:unable, :session, _text}, operation) do
    detail =
      "the worker that kept the session has been replaced, and what it kept is gone: begin another session"

    {:error, %Error{operation: operation, reason: :session_lost, detail: detail}}
  end

  def result({:unable, :memory, text}, operation),
    do: {:error, %Error{operation: operation, reason: :eacces, detail: text}}

  def result({:error, %Error{operation: :request, reason: :timeout} = error}, operation) do
    detail =
      "it took longer than its :timeout and was interrupted; the worker is replaced if it does not react"

    {:error, %{error | operation: operation, detail: detail}}
  end

  def result({:error, %Error{operation: :request, reason: :worker_down} = error}, operation),
    do:
      {:error,
       %{error | operation: operation, detail: "the worker ended during it: #{error.detail}"}}

  def result({:error, error}, _operation), do: {:error, error}

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - now(), 0)

  defp now, do: System.monotonic_time(:millisecond)
end
