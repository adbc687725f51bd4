defmodule Snakepit.Test.ProcScan do
  @moduledoc """
  The judge: reads `/proc` by itself and shares no code with what it judges.
  """

  @doc "Every process, ended ones that nobody has reaped included; see `stat/1`."
  def all, do: for(os_pid <- os_pids(), stat = stat(os_pid), do: stat)

  defp os_pids,
    do: for(name <- File.ls!("/proc"), {os_pid, ""} <- [Integer.parse(name)], do: os_pid)

  @doc """
  Whether the process is there and no zombie. Takes a pid, or what `stat/1` has given: a pid that has
  become another's in the meantime is not that process.
  """
  def running?(%{os_pid: os_pid, start: start}),
    do: match?(%{start: ^start, state: state} when state not in ["Z", "X"], stat(os_pid))

  def running?(nil), do: false

  def running?(os_pid) do
    case stat(os_pid) do
      nil -> false
      %{state: state} -> state not in ["Z", "X"]
    end
  end

  @doc "How many threads a process still has; a zombie is one."
  def threads(%{os_pid: os_pid, start: start}) do
    with %{start: ^start} <- stat(os_pid),
         {:ok, threads} <- File.ls("/proc/#{os_pid}/task"),
         do: length(threads),
         else: (_gone -> 0)
  end

  @doc "State letter, parent, group and start time of a process; `nil` if there is none."
  def stat(os_pid) do
    with {:ok, line} <- File.read("/proc/#{os_pid}/stat") do
      # The name in parentheses may contain anything, so count from its end.
      {close, 1} = line |> :binary.matches(")") |> List.last()
      rest = binary_part(line, close + 2, byte_size(line) - close - 2)
      [state, parent, group | _] = fields = String.split(rest, " ")

      %{
        os_pid: os_pid,
        state: state,
        parent: String.to_integer(parent),
        group: String.to_integer(group),
        start: fields |> Enum.at(19) |> String.to_integer()
      }
    else
      _gone -> nil
    end
  end

  @doc "What runs with this very argument on its command line."
  def with_argument(argument) do
    # Order: what most have not is looked at first, since this is asked again and again.
    for os_pid <- os_pids(),
        {:ok, line} <- [File.read("/proc/#{os_pid}/cmdline")],
        argument in String.split(line, <<0>>),
        running?(os_pid),
        do: os_pid
  end

  @doc "What runs under one of these names with this variable in its environment."
  def with_variable(variable, value, names) do
    for os_pid <- os_pids(),
        name(os_pid) in names,
        {:ok, environment} <- [File.read("/proc/#{os_pid}/environ")],
        "#{variable}=#{value}" in String.split(environment, <<0>>),
        running?(os_pid),
        do: os_pid
  end

  @doc "The name that the kernel has for a process; `nil` if there is none."
  def name(os_pid) do
    case File.read("/proc/#{os_pid}/comm") do
      {:ok, name} -> String.trim_trailing(name, "\n")
      {:error, _gone} -> nil
    end
  end

  @doc "A command line, for people."
  def command(os_pid) do
    case File.read("/proc/#{os_pid}/cmdline") do
      {:ok, line} -> line |> String.trim(<<0>>) |> String.replace(<<0>>, " ")
      {:error, _gone} -> ""
    end
  end

  @doc "What runs as this user."
  def of_user(uid) do
    for os_pid <- os_pids(),
        {:ok, %{uid: ^uid}} <- [File.stat("/proc/#{os_pid}")],
        running?(os_pid),
        do: os_pid
  end

  @doc """
  What runs below a process, however deep, but for the BEAM's own helpers, the guardian, and what
  waits at its gate.
  """
  def descendants(root) do
    table = Enum.reject(all(), &(&1.state in ["Z", "X"]))
    below(table, [root]) |> Enum.reject(&beam_helper?/1)
  end

  defp below(_table, []), do: []

  defp below(table, parents) do
    children = for %{os_pid: os_pid, parent: parent} <- table, parent in parents, do: os_pid
    children ++ below(table, children)
  end

  defp beam_helper?(os_pid) do
    name(os_pid) in [nil, "erl_child_setup", "inet_gethost", "snakepit_guardi"]
  end
end
