defmodule Snakepit.Cluster.Wire do
  @moduledoc false

  # What holders and members of different nodes say to each other, over Erlang distribution. The first two elements of a
  # message, and the last one of a request, are the same in each version.
  #
  #     {Snakepit.Cluster.Wire, version, {operation, id, token, lease, sent}, holder}
  #     {Snakepit.Cluster.Wire, version, {:granted, member, token, sent, number}}
  #     {Snakepit.Cluster.Wire, version, {:refused, member, token, why, number}}
  #     {Snakepit.Cluster.Wire, version, {:free, member, number}}

  @version 1

  @doc "The version of these messages."
  def version, do: @version

  @doc """
  Sends without waiting, whatever becomes of it: nothing is sent to a node that is not connected, or whose connection is
  full. Whoever does not hear asks again.
  """
  @spec send_to(pid() | {atom(), node()}, term()) :: :ok
  def send_to(whom, content), do: transmit(whom, {__MODULE__, @version, content})

  @doc "As `send_to/2`, with the sender, who is to be answered."
  @spec request(pid() | {atom(), node()}, term(), pid()) :: :ok
  def request(whom, content, from), do: transmit(whom, {__MODULE__, @version, content, from})

  defp transmit(whom, message) do
    Process.send(whom, message, [:noconnect, :nosuspend])
    :ok
  end
end
