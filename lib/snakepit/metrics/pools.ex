defmodule Snakepit.Metrics.Pools do
  @moduledoc false

  # What pools are called in metrics, and what they say of themselves.

  alias Snakepit.Metrics.Store
  alias Snakepit.Pool.Directory

  # All of them together: a scrape has to be over before the next one.
  @answer_ms 1_000

  @doc "Returns the label of a pool, by whatever a caller calls it: the group that its workers are in."
  @spec label(Store.t(), GenServer.server()) :: String.t()
  def label(store, pool), do: label(pool, &Store.group(store, &1), prefix(pool))

  @doc "Returns the same where there is no store."
  @spec name(GenServer.server()) :: String.t()
  def name(pool), do: label(pool, &Store.default_group/1, prefix(pool))

  defp label(pool, _group, nil), do: if(is_pid(pool), do: "remote", else: inspect(pool))
  defp label(_pool, group, prefix), do: group.(prefix <> "-1")

  defp prefix(pool) do
    case GenServer.whereis(pool) do
      pid when is_pid(pid) -> Directory.prefix(pid)
      _none_or_elsewhere -> nil
    end
  end

  @doc "Returns the pools with their `Snakepit.Pool.Info`, or with `nil` for one that does not answer in time."
  @spec infos(Store.t()) :: [{String.t(), Snakepit.Pool.Info.t() | nil}]
  def infos(store),
    do: for({_pid, prefix, info} <- infos(), do: {Store.group(store, prefix <> "-1"), info})

  @doc "Returns the same with the process of each pool, and what the ids of its workers begin with."
  @spec infos() :: [{pid(), String.t(), Snakepit.Pool.Info.t() | nil}]
  def infos do
    asked =
      for {pid, prefix} <- Directory.all(),
          do: {pid, prefix, :gen_server.send_request(pid, :info)}

    deadline = System.monotonic_time(:millisecond) + @answer_ms

    for {pid, prefix, request} <- asked do
      left = max(deadline - System.monotonic_time(:millisecond), 0)

      case :gen_server.receive_response(request, left) do
        {:reply, info} -> {pid, prefix, info}
        _busy_or_gone -> {pid, prefix, nil}
      end
    end
  end
end
