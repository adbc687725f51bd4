defmodule Snakepit.Metrics.Labels do
  @moduledoc false

  # What the metadata of an event says in the labels of metrics: of a few words each, whatever has happened.

  alias Snakepit.Error
  alias Snakepit.Metrics.{Pools, Store}

  @doc "Returns in which group a worker is counted."
  @spec group(Store.t(), String.t()) :: String.t()
  def group(store, worker_id),
    do: Store.label(store, :group, Store.group(store, worker_id))

  @doc "Returns as which pool it is counted."
  @spec pool(Store.t(), GenServer.server()) :: String.t()
  def pool(store, pool), do: Store.label(store, :pool, Pools.label(store, pool))

  @doc "Returns why a worker has ended, from the reason with which it exits."
  @spec ended(term()) :: atom()
  def ended(reason) when reason in [:normal, :shutdown, :heartbeat_timeout, :guardian_down],
    do: reason

  def ended({:shutdown, %Error{operation: :start}}), do: :not_ready
  def ended({:shutdown, _why}), do: :shutdown
  def ended({kind, _detail}) when kind in [:exit_status, :exit_signal, :survivors], do: kind
  def ended(fault) when fault in [:max_packet, :unexpected_output, :unanswered], do: :protocol
  def ended(_crash), do: :crash

  @doc "Returns what a caller of a pool got, from the metadata of the span."
  @spec lent(map()) :: :ok | :timeout | :error
  def lent(%{worker: _worker}), do: :ok
  def lent(%{error: %Error{reason: :timeout}}), do: :timeout
  def lent(_error_or_exception), do: :error

  @doc "Returns how a program has ended that was run to its end, from the metadata of the span."
  @spec result(map()) :: :ok | :status | :signal | :limit | :error
  def result(%{status: 0}), do: :ok
  def result(%{status: status}) when status != nil, do: :status
  def result(%{signal: _signal}), do: :signal
  def result(%{limit: _limit}), do: :limit
  # One that `:success` does not allow.
  def result(%{error: %Error{status: status}}) when status != nil, do: :status
  def result(%{error: %Error{signal: signal}}) when signal != nil, do: :signal
  def result(_error_or_exception), do: :error
end
