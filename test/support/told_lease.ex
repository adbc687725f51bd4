defmodule Snakepit.Test.ToldLease do
  @moduledoc """
  A lease that the test gives and takes: a process that passes news on, and tells the test when the lease is given back.
  """

  @behaviour Snakepit.Cluster.Lease

  alias Snakepit.Cluster.Lease

  @impl true
  def start_link(opts) do
    {test, owner} = {opts[:test], opts[:owner]}
    {:ok, pid} = answer = Task.start_link(fn -> pass_on(owner) end)
    send(test, {:lease, pid, test})
    answer
  end

  # Asked of the test, which may look at what is there meanwhile.
  @impl true
  def release(lease) do
    ref = make_ref()
    send(lease, {:release, self(), ref})
    receive do: ({^ref, :released} -> :ok)
  end

  @doc "The owner has the lease for so many milliseconds from now on."
  def hold(lease, token, ms), do: send(lease, {:news, {:held, token, Lease.now() + ms}})

  @doc "The owner has lost it."
  def lose(lease), do: send(lease, {:news, :lost})

  @doc "Waits until it is given back; then `look` is called before the owner goes on."
  def await_release(lease, look) do
    send(lease, {:ask_for_release, self()})

    receive do
      {:releasing, from, ref} ->
        looked = look.()
        send(from, {ref, :released})
        looked
    after
      20_000 -> raise "the lease was not given back"
    end
  end

  defp pass_on(owner, test \\ nil, waiting \\ nil) do
    if test && waiting do
      {from, ref} = waiting
      send(test, {:releasing, from, ref})
      pass_on(owner)
    end

    receive do
      {:news, news} ->
        send(owner, {Lease, self(), news})
        pass_on(owner, test, waiting)

      {:ask_for_release, test} ->
        pass_on(owner, test, waiting)

      {:release, from, ref} ->
        pass_on(owner, test, {from, ref})
    end
  end
end
