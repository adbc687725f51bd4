defmodule Snakepit.Test.Hosts do
  @moduledoc """
  Several hosts on one machine: network namespaces with an address each, on a bridge in a namespace of its own. They can be
  cut off from each other.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  @doc "Why tests with them are to be skipped, or `false`."
  def missing? do
    cond do
      System.find_executable("ip") == nil -> "there is no iproute2 (script/bootstrap --all)"
      not permitted?() -> "network namespaces are not permitted here"
      true -> false
    end
  end

  defp permitted? do
    name = name(0)
    made = match?({_, 0}, System.cmd("ip", ["netns", "add", name], stderr_to_stdout: true))
    if made, do: ip(["netns", "del", name])
    made
  end

  @doc "Makes so many. They are gone when the test is over."
  def start(count) do
    hub = name(0)

    on_exit(fn -> for number <- 0..count, do: System.cmd("ip", ["netns", "del", name(number)]) end)

    ip(["netns", "add", hub])
    ip(["-n", hub, "link", "add", "bridge", "type", "bridge"])
    ip(["-n", hub, "link", "set", "bridge", "up"])

    for number <- 1..count do
      host = name(number)
      port = "port#{number}"
      ip(["netns", "add", host])
      ip(["-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host])
      ip(["-n", hub, "link", "set", port, "master", "bridge", "up"])
      ip(["-n", host, "address", "add", address(number) <> "/24", "dev", "eth0"])
      for link <- ["lo", "eth0"], do: ip(["-n", host, "link", "set", link, "up"])
      number
    end
  end

  @doc "The address of a host."
  def address(number), do: "10.77.0.#{number}"

  @doc "What comes before a command that is to run on a host."
  def wrapper(number), do: ["ip", "netns", "exec", name(number)]

  @doc "Packets of `from` do not reach `to` any more. Those of `to` still arrive."
  def cut(from, to),
    do: ip(["-n", name(from), "route", "replace", "blackhole", address(to) <> "/32"])

  @doc "Divides the hosts into groups that do not hear each other."
  def divide(groups) do
    for one <- groups, other <- groups, one != other, from <- one, to <- other, do: cut(from, to)
  end

  @doc "Everybody hears everybody again."
  def heal(hosts) do
    for from <- hosts, to <- hosts, from != to do
      System.cmd("ip", ["-n", name(from), "route", "del", "blackhole", address(to) <> "/32"],
        stderr_to_stdout: true
      )
    end
  end

  defp name(number), do: "snakepit-#{System.pid()}-#{number}"

  defp ip(arguments), do: {_, 0} = System.cmd("ip", arguments)
end
