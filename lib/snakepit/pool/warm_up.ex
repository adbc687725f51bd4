defmodule Snakepit.Pool.WarmUp do
  @moduledoc false

  # What a worker does before a pool counts it as ready, in a process of its own: it may take long, and fail. The
  # pool hears `{Snakepit.Pool.WarmUp, pid, number, :ok | {:error, error}}`.

  alias Snakepit.{Error, ProcessLabel}

  @doc "Warms up the worker of a slot. The process is linked to the caller, who hears of it."
  @spec start((pid() -> term()) | mfa(), pos_integer(), pid()) :: pid()
  def start(warm_up, number, worker) do
    pool = self()

    spawn_link(fn ->
      ProcessLabel.set({__MODULE__, worker})
      send(pool, {__MODULE__, self(), number, run(warm_up, worker)})
    end)
  end

  defp run(warm_up, worker) do
    case call(warm_up, worker) do
      result when result in [:ok, true] ->
        :ok

      {:ok, _value} ->
        :ok

      {:error, %Error{} = error} ->
        {:error, error}

      other ->
        {:error, error("it returned #{inspect(other)} and neither :ok, true nor {:ok, value}")}
    end
  catch
    kind, reason -> {:error, error(Exception.format_banner(kind, reason, __STACKTRACE__))}
  end

  defp call({module, function, arguments}, worker),
    do: apply(module, function, [worker | arguments])

  defp call(fun, worker), do: fun.(worker)

  defp error(detail),
    do: %Error{
      operation: :warm_up,
      reason: :not_ready,
      detail: "the warm-up has failed: " <> detail
    }
end
