defmodule Snakepit.Bench.Python do
  @moduledoc """
  Calls of Python: beside a bare port with a loop that does the same with JSON, and beside bare interpreters.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  require Logger

  alias Snakepit.Bench.Turns
  alias Snakepit.{Pool, Python}

  @turns [rounds: 30, within_ms: 20_000]
  @calls 300
  @workers 4
  @callers 64
  @items 5_000
  @in_flight 16
  @big 100_000_000
  @interpreters 100

  # What people write when they have no library. Elixir's side reads as little JSON as it can.
  @loop """
  import json, sys
  read, write, flush = sys.stdin.buffer.read, sys.stdout.buffer.write, sys.stdout.buffer.flush
  while header := read(4):
      request = json.loads(read(int.from_bytes(header, "big")))
      answer = json.dumps({"id": request["id"], "result": abs(*request["args"])}).encode()
      write(len(answer).to_bytes(4, "big") + answer)
      flush()
  """

  @impl true
  def run do
    Process.flag(:trap_exit, true)
    # Interpreters that are ended are no news here.
    Logger.configure(level: :none)
    one_caller() ++ many_callers() ++ big() ++ items() ++ interpreters()
  end

  defp pool(opts) do
    name = Module.concat(__MODULE__, "Pool#{System.unique_integer([:positive])}")
    {:ok, pool} = Python.start_link([name: name] ++ opts)
    :ok = Pool.await_ready(name, 60_000)
    {name, pool}
  end

  defp stop({_name, pool}) do
    Process.unlink(pool)
    GenServer.stop(pool, :shutdown, :infinity)
  end

  defp port do
    python = System.find_executable("python3")
    Port.open({:spawn_executable, python}, [:binary, packet: 4, args: ["-c", @loop]])
  end

  defp ask(port, n) do
    Port.command(port, [
      ~s({"id": ),
      Integer.to_string(n),
      ~s(, "args": [),
      Integer.to_string(-n),
      "]}"
    ])

    receive do
      {^port, {:data, data}} -> data
    end
  end

  defp one_caller do
    {name, _pid} = pool = pool(size: 1)

    ways = [
      call: fn ->
        us(fn -> for n <- 1..@calls, do: {:ok, ^n} = Python.call(name, "abs", [-n]) end)
      end,
      port: fn -> ports(1) end
    ]

    rounds = Turns.each(ways, [label: "one caller"] ++ @turns)
    stop(pool)

    [
      row(
        name: "Python.call, one caller, beside a bare port and JSON",
        rounds: Turns.beside(rounds, :call, :port, &(@calls * 1_000_000 / &1)),
        unit: "calls/s",
        better: :higher,
        target: {:ratio, 1.0}
      )
    ]
  end

  # Each port serves the callers that are its own.
  defp many_callers do
    {one, _pid} = first = pool(size: 1)
    {many, _pid} = second = pool(size: @workers)
    each = div(@calls * 4, @callers)

    ways = [
      one: fn ->
        us(fn -> for n <- 1..@calls, do: {:ok, ^n} = Python.call(one, "abs", [-n]) end) / @calls
      end,
      many: fn ->
        us(fn ->
          at_once(@callers, fn _ ->
            for n <- 1..each, do: {:ok, ^n} = Python.call(many, "abs", [-n])
          end)
        end) / (each * @callers)
      end,
      ports: fn -> ports(@workers) / (@calls * @workers) end,
      port: fn -> ports(1) / @calls end
    ]

    rounds = Turns.each(ways, [label: "#{@callers} callers"] ++ @turns)
    stop(first)
    stop(second)
    rate = &(1_000_000 / &1)

    [
      row(
        name: "Python.call, #{@callers} callers on #{@workers} workers, beside one on one",
        rounds: Turns.beside(rounds, :many, :one, rate),
        unit: "calls/s",
        better: :higher,
        target: {:ratio, 3}
      ),
      row(
        name: "the same of #{@workers} bare ports with JSON, beside one",
        rounds: Turns.beside(rounds, :ports, :port, rate),
        unit: "calls/s",
        better: :higher
      )
    ]
  end

  # How long so many calls of each of so many ports take, all of which have answered before.
  defp ports(count) do
    parent = self()

    callers =
      for _ <- 1..count do
        Task.async(fn ->
          port = port()
          ask(port, 0)
          send(parent, {:ready, self()})
          receive(do: (:go -> :ok))
          for n <- 1..@calls, do: ask(port, n)
          send(parent, {:done, self()})
          Port.close(port)
        end)
      end

    for %{pid: pid} <- callers, do: receive(do: ({:ready, ^pid} -> :ok))

    us =
      us(fn ->
        for %{pid: pid} <- callers, do: send(pid, :go)
        for %{pid: pid} <- callers, do: receive(do: ({:done, ^pid} -> :ok))
      end)

    Task.await_many(callers, :infinity)
    us
  end

  defp at_once(count, fun) do
    1..count |> Enum.map(&Task.async(fn -> fun.(&1) end)) |> Task.await_many(:infinity)
  end

  defp big do
    {name, _pid} = pool = pool(size: 1)
    # Neither is text, which is sent.
    bytes = :binary.copy(<<255>>, @big)
    text = :binary.copy("a", @big)

    ways = [
      mapped: fn ->
        us(fn ->
          {:ok, <<255, _::binary>>} = Python.call(name, "memoryview", [bytes], timeout: 60_000)
        end)
      end,
      sent: fn ->
        us(fn -> {:ok, <<?a, _::binary>>} = Python.call(name, "str", [text], timeout: 60_000) end)
      end
    ]

    rounds = Turns.each(ways, label: "100 MB there and back", rounds: 8, within_ms: 60_000)
    stop(pool)

    [
      row(
        name: "100 MB there and back, beside the same through the pipe",
        rounds: Turns.beside(rounds, :mapped, :sent, &(2 * @big / &1)),
        unit: "MB/s",
        better: :higher,
        target: {:ratio, 5}
      )
    ]
  end

  defp items do
    {name, _pid} = pool = pool(size: 1)
    {many, _pid} = concurrent = pool(size: 1, concurrency: @in_flight)
    each = div(@items, @in_flight)

    ways = [
      items: fn ->
        us(fn -> @items = name |> Python.stream("range", [@items]) |> Enum.count() end) / @items
      end,
      calls: fn ->
        us(fn ->
          at_once(@in_flight, fn _ ->
            for n <- 1..each, do: {:ok, ^n} = Python.call(many, "abs", [-n])
          end)
        end) / (each * @in_flight)
      end
    ]

    rounds = Turns.each(ways, [label: "items of a stream"] ++ @turns)
    stop(pool)
    stop(concurrent)

    [
      row(
        name: "items of a stream, beside calls with #{@in_flight} in flight",
        rounds: Turns.beside(rounds, :items, :calls, &(1_000_000 / &1)),
        unit: "items/s",
        better: :higher,
        target: {:ratio, 0.8}
      )
    ]
  end

  # Both are ready when they have answered.
  defp interpreters do
    ways = [
      workers: fn ->
        {us, pool} = once(fn -> pool(size: @interpreters) end)
        stop(pool)
        us
      end,
      bare: fn ->
        {us, ports} =
          once(fn ->
            ports = for _ <- 1..@interpreters, do: port()
            for port <- ports, do: ask(port, 1)
            ports
          end)

        Enum.each(ports, &Port.close/1)
        us
      end
    ]

    rounds =
      Turns.each(ways, label: "#{@interpreters} interpreters", rounds: 6, within_ms: 60_000)

    [
      row(
        name: "#{@interpreters} Python workers ready, beside bare interpreters with a loop",
        rounds: Turns.beside(rounds, :workers, :bare, &(&1 / 1000)),
        unit: "ms",
        target: {:ratio, 1.1}
      )
    ]
  end

  defp us(fun), do: fun |> once() |> elem(0)
end
