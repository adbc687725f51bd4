defmodule Soak.Actors do
  @moduledoc """
  Those who make the load: each does one thing again and again, as users of the library do, and goes
  on whatever comes of it. While the guardian or the application is away, much fails; that is counted.
  """

  alias Snakepit.{Pool, Worker}

  @counted [:starts, :calls, :commands, :streams, :workers, :refused, :command_us]

  @whereabouts [:current_stacktrace, :messages, :monitors, :links]
  @pause_ms 20
  @pool_sizes 2..6

  def counters, do: :counters.new(length(@counted), [:write_concurrency])

  def count(counters, what, amount \\ 1) do
    index = Enum.find_index(@counted, &(&1 == what))
    :counters.add(counters, index + 1, amount)
  end

  def read(counters) do
    for {what, index} <- Enum.with_index(@counted, 1), into: %{} do
      {what, :counters.get(counters, index)}
    end
  end

  def start(plan) do
    acts = [
      fn -> call(plan) end,
      fn -> call(plan) end,
      fn -> command(plan) end,
      fn -> stream(plan) end,
      fn -> worker(plan) end,
      fn -> worker(plan) end,
      fn -> resize(plan) end
    ]

    for act <- Enum.take(acts, plan[:actors]), do: spawn(fn -> for_ever(act, plan[:counters]) end)
  end

  @doc "For how long the one that has taken longest has been at what it does, in milliseconds."
  def longest(actors) do
    now = System.monotonic_time(:millisecond)
    actors |> Enum.map(fn actor -> now - elem(act(actor), 1) end) |> Enum.max()
  end

  @doc "Where each of them is, for people."
  def whereabouts(actors) do
    for actor <- actors, {pid, _since} = act(actor), do: Process.info(pid, @whereabouts)
  end

  defp act(actor) do
    {:dictionary, dictionary} = Process.info(actor, :dictionary)
    dictionary[:act] || {actor, System.monotonic_time(:millisecond)}
  end

  # In a process of its own: what one time leaves in a mailbox or a dictionary is not the next one's.
  defp for_ever(act, counters) do
    {pid, monitor} = spawn_monitor(fn -> attempt(act, counters) end)
    Process.put(:act, {pid, System.monotonic_time(:millisecond)})
    receive(do: ({:DOWN, ^monitor, :process, ^pid, _reason} -> :ok))
    Process.sleep(@pause_ms)
    for_ever(act, counters)
  end

  defp attempt(act, counters) do
    act.()
  rescue
    _error -> count(counters, :refused)
  catch
    _kind, _reason -> count(counters, :refused)
  end

  defp call(plan) do
    {name, _size, _worker} = Enum.random(plan[:pools])
    line = if :rand.uniform(50) == 1, do: "daemon\n", else: "#{:rand.uniform(1000)}\n"
    {:ok, _answer} = Pool.with_worker(name, &Worker.request(&1, line), timeout: 1_000)
    count(plan[:counters], :calls)
  end

  defp command(plan) do
    begun = System.monotonic_time(:microsecond)

    case :rand.uniform(20) do
      1 -> {"", :timeout} = Snakepit.cmd("sleep", ["60"], timeout: 20)
      2 -> {:error, _error} = Snakepit.run("/there/is/no/such/program", [])
      3 -> {_output, :max_output} = Snakepit.cmd("yes", [], max_output: 10_000)
      4 -> {"LOUD", 0} = Snakepit.cmd("tr", ["a-z", "A-Z"], input: "loud")
      _ -> timed(plan, begun)
    end

    count(plan[:counters], :starts)
  end

  defp timed(plan, begun) do
    {"hello\n", 0} = Snakepit.cmd("echo", ["hello"])
    count(plan[:counters], :command_us, System.monotonic_time(:microsecond) - begun)
    count(plan[:counters], :commands)
  end

  defp stream(plan) do
    if :rand.uniform(2) == 1 do
      ["y\n" | _] = Snakepit.stream!(["yes"], packet: :line) |> Enum.take(100)
    else
      100 = Snakepit.stream!(["seq", "100"], packet: :line) |> Enum.count()
    end

    count(plan[:counters], :starts)
    count(plan[:counters], :streams)
  end

  defp worker(plan) do
    Process.flag(:trap_exit, true)
    {:ok, worker} = Worker.start_link(cmd: Enum.random(plan[:programs]), stop_timeout: 50)
    count(plan[:counters], :starts)
    Process.sleep(:rand.uniform(200))
    finish(worker, :rand.uniform(3))
    count(plan[:counters], :workers)
  end

  defp finish(worker, 1), do: Worker.stop(worker)
  # The owner dies, and the guardian has to notice by itself.
  defp finish(worker, 2), do: Process.exit(worker, :kill)
  # So does this, and its worker is told by the link.
  defp finish(_worker, 3), do: :ok

  defp resize(plan) do
    Process.sleep(1_000 + :rand.uniform(2_000))
    {name, _size, _worker} = Enum.random(plan[:pools])
    Pool.resize(name, Enum.random(@pool_sizes))

    with [worker | _] <- Enum.shuffle(Pool.list_workers(name)),
         do: Pool.restart_worker(name, worker.id, force: :rand.uniform(2) == 1)
  end
end
