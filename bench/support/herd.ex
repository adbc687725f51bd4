defmodule Snakepit.Bench.Herd do
  @moduledoc """
  Thousands of cheap OS processes that cannot outlive this BEAM; `herd.py` says why.
  """

  @enforce_keys [:port, :os_pid]
  defstruct [:port, :os_pid]

  @type t :: %__MODULE__{}

  @typedoc "How many, and the run id that they carry in their environment and their arguments."
  @type group :: {pos_integer(), Snakepit.RunID.t() | nil}

  @patience_ms 60_000
  # After thousands have come or gone, until the kernel is done with it.
  @settle_ms 300

  @doc "Runs `fun` while the herd is there and at rest. Returns when all of it has gone."
  @spec with_herd([group()], (t() -> value)) :: value when value: term()
  def with_herd(groups, fun) do
    herd = start(groups)

    try do
      await(herd, groups |> Enum.map(&elem(&1, 0)) |> Enum.sum())
      fun.(herd)
    after
      stop(herd)
    end
  end

  @doc """
  Calls `fun` with each number while so many processes are there, from the least to the most or, with
  `:down`, the other way. Gives what it returned for each.
  """
  @spec at_sizes([non_neg_integer(), ...], :up | :down, (non_neg_integer() -> value)) ::
          %{non_neg_integer() => value}
        when value: term()
  def at_sizes(sizes, order, fun), do: Map.new(visit(Enum.sort(sizes), 0, order, fun))

  defp visit([], _there, _order, _fun), do: []

  defp visit([size | larger], there, order, fun) do
    with_more(size - there, fn ->
      case order do
        :up -> [measured(size, fun) | visit(larger, size, order, fun)]
        :down -> visit(larger, size, order, fun) ++ [measured(size, fun)]
      end
    end)
  end

  defp with_more(0, fun), do: fun.()
  defp with_more(count, fun), do: with_herd([{count, nil}], fn _herd -> fun.() end)

  defp measured(size, fun) do
    Process.sleep(@settle_ms)
    {size, fun.(size)}
  end

  @doc """
  The pids of the members that have not ended. Read from `/proc`, by code that shares nothing with
  what is measured.
  """
  @spec living(t()) :: [pos_integer()]
  def living(herd), do: for({os_pid, state} <- members(herd), state not in ~w(Z X), do: os_pid)

  @doc "Waits until that many members are there, all of them asleep."
  @spec await(t(), non_neg_integer()) :: :ok
  def await(herd, count), do: await(herd, count, now() + @patience_ms)

  defp await(herd, count, deadline) do
    states = for {_os_pid, state} <- members(herd), do: state

    cond do
      length(states) == count and Enum.all?(states, &(&1 == "S")) ->
        :ok

      now() > deadline ->
        raise "expected #{count} processes asleep, got: #{inspect(Enum.frequencies(states))}"

      true ->
        Process.sleep(10)
        await(herd, count, deadline)
    end
  end

  defp start(groups) do
    arguments = for {count, run_id} <- groups, do: "#{count}:#{run_id}"
    script = Path.join(__DIR__, "herd.py")
    options = [:binary, :exit_status, line: 80, args: [script | arguments]]
    port = Port.open({:spawn_executable, System.find_executable("python3")}, options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)

    receive do
      {^port, {:data, {:eol, "ready"}}} -> %__MODULE__{port: port, os_pid: os_pid}
      {^port, {:exit_status, status}} -> raise "herd.py ended with status #{status}"
    after
      @patience_ms -> raise "herd.py did not get ready"
    end
  end

  defp stop(%{port: port}) do
    # A message and not a call, which raises where the port has closed.
    send(port, {self(), {:command, "end\n"}})

    receive do
      {^port, {:exit_status, 0}} -> :ok
      {^port, {:exit_status, status}} -> raise "herd.py ended with status #{status}"
    after
      @patience_ms -> raise "herd.py does not end"
    end
  end

  defp members(herd) do
    parent = Integer.to_string(herd.os_pid)

    for name <- File.ls!("/proc"),
        {os_pid, ""} <- [Integer.parse(name)],
        {:ok, stat} <- [File.read("/proc/#{name}/stat")],
        # The name in parentheses may contain anything, so count from its end.
        [state, ^parent | _] <- [stat |> String.split(") ") |> List.last() |> String.split(" ")] do
      {os_pid, state}
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
