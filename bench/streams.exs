defmodule Snakepit.Bench.Streams do
  @moduledoc """
  What passes between a program and the BEAM: a long stream, and many short requests.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  require Logger

  alias Snakepit.Bench.Turns
  alias Snakepit.Worker

  @block 65_536
  @gib 1024 * 1024 * 1024
  @zeros :binary.copy(<<0>>, @block)
  @packet_bytes 100
  # A round trip takes some 50 µs: enough of them that one that waited for a core does not matter.
  @trips 500
  @in_flight 16
  @lines 1_000_000
  @turns [rounds: 30, within_ms: 60_000, turn_ms: 300, calls: 3..100]
  @echo """
  import sys
  read, write, flush = sys.stdin.buffer.read, sys.stdout.buffer.write, sys.stdout.buffer.flush
  while header := read(4):
      write(header + read(int.from_bytes(header, "big")))
      flush()
  """

  @impl true
  def run, do: streams() ++ round_trips() ++ lines()

  defp streams do
    count = div(@gib, @block)
    arguments = ["if=/dev/zero", "bs=#{@block}", "count=#{count}", "status=none"]
    command = [System.find_executable("dd") | arguments]

    ways = [
      snakepit: fn -> snakepit_bytes(command) end,
      port: fn -> port_bytes(command) end,
      shell: fn -> shell_bytes(command) end,
      both_ways: fn -> both_ways_bytes(count) end
    ]

    rounds = Turns.each(ways, label: "a stream of 1 GiB", rounds: 12, within_ms: 120_000)

    for {name, way, baseline, target} <- [
          {"stream of 1 GiB, beside Port", :snakepit, :port, {:ratio, 1.5}},
          {"stream of 1 GiB, beside a pipe of the shell to cat", :snakepit, :shell, nil},
          {"1 GiB through cat, both ways at once, beside one way", :both_ways, :snakepit,
           {:ratio, 0.7}}
        ] do
      row(
        name: name,
        rounds: Turns.beside(rounds, way, baseline, &(@gib / &1)),
        unit: "MB/s",
        better: :higher,
        target: target
      )
    end
  end

  defp shell_bytes(command) do
    script = Enum.join(command, " ") <> " | cat > /dev/null"
    {us, {_output, 0}} = once(fn -> System.cmd("sh", ["-c", script]) end)
    us
  end

  defp both_ways_bytes(count) do
    input = Stream.map(1..count, fn _ -> @zeros end)
    stream = Snakepit.stream!(["cat"], input: input)
    {us, @gib} = once(fn -> Enum.reduce(stream, 0, &(byte_size(&1) + &2)) end)
    us
  end

  defp snakepit_bytes(command) do
    {us, @gib} = once(fn -> Enum.reduce(Snakepit.stream!(command), 0, &(byte_size(&1) + &2)) end)

    us
  end

  defp port_bytes([program | args]) do
    {us, @gib} =
      once(fn ->
        options = [:binary, :exit_status, args: args]
        count(Port.open({:spawn_executable, program}, options), 0)
      end)

    us
  end

  defp count(port, bytes) do
    receive do
      {^port, {:data, data}} -> count(port, bytes + byte_size(data))
      {^port, {:exit_status, 0}} -> bytes
    end
  end

  # Both talk to the same program, which reads the length, and then as much.
  defp round_trips do
    one = %{bytes: @packet_bytes, trips: @trips, called: "#{@packet_bytes} bytes"}
    long = %{bytes: 1_000_000, trips: 20, called: "1 MB"}
    Enum.flat_map([one, long], &round_trips/1) ++ in_flight()
  end

  defp round_trips(size) do
    packet = :crypto.strong_rand_bytes(size.bytes)
    {:ok, worker} = Worker.start_link([cmd: echo(), stdio: :pipe] ++ [packet: 4])

    ways = [
      worker: fn -> ask_worker(worker, packet, size.trips) end,
      port: fn -> ask_port(packet, size.trips) end
    ]

    rounds = Turns.run(ways, [label: "round trips of #{size.called}"] ++ @turns)
    :ok = Worker.stop(worker)

    [
      row_of_trips(
        "packet: 4, round trips of #{size.called}, beside Port",
        rounds,
        size.trips,
        1.0
      )
    ]
  end

  # Callers of their own, as many as the worker has in flight, beside one that waits for each answer.
  defp in_flight do
    packet = :crypto.strong_rand_bytes(@packet_bytes)

    for {options, called} <- [{[], "in order"}, {[tag: {:bytes, 2}], "by tag"}] do
      {:ok, worker} =
        Worker.start_link(
          [cmd: echo(), stdio: :pipe, packet: 4, in_flight: @in_flight] ++ options
        )

      ways = [
        worker: fn -> ask_at_once(worker, packet) end,
        port: fn -> ask_port(packet, @trips) end
      ]

      rounds = Turns.run(ways, [label: "#{@in_flight} in flight, #{called}"] ++ @turns)
      :ok = Worker.stop(worker)
      name = "packet: 4, #{@in_flight} in flight #{called}, beside one at a time of Port"
      row_of_trips(name, rounds, @trips, 2.0)
    end
  end

  defp row_of_trips(name, rounds, trips, least) do
    row(
      name: name,
      rounds: Turns.beside(rounds, :worker, :port, &(1_000_000 * trips / percentile(&1, 50))),
      unit: "round trips/s",
      better: :higher,
      target: {:ratio, least}
    )
  end

  defp echo, do: [System.find_executable("python3"), "-c", @echo]

  defp ask_at_once(worker, packet) do
    each = fn _caller -> repeat(@trips, fn -> ask(worker, packet) end) end

    {us, _done} =
      once(fn ->
        1..@in_flight |> Enum.map(&Task.async(fn -> each.(&1) end)) |> Task.await_many()
      end)

    us / @in_flight
  end

  defp ask(worker, packet), do: {:ok, ^packet} = Worker.request(worker, packet)

  defp ask_worker(worker, packet, trips) do
    {us, :ok} = once(fn -> repeat(trips, fn -> ask(worker, packet) end) end)
    us
  end

  # Owned by whoever asks; its start is not measured.
  defp ask_port(packet, trips) do
    [program | args] = echo()
    port = Port.open({:spawn_executable, program}, [:binary, packet: 4, args: args])

    ask = fn ->
      true = Port.command(port, packet)
      receive do: ({^port, {:data, ^packet}} -> :ok)
    end

    ask.()
    {us, :ok} = once(fn -> repeat(trips, ask) end)
    Port.close(port)
    us
  end

  # Short lines, each of which is a message or a call.
  defp lines do
    # What each worker has said at last would be as long as it is dull.
    Logger.configure(level: :none)
    command = ["sh", "-c", "yes | head -n #{@lines}"]

    ways = [
      send: fn -> sent_lines(command) end,
      function: fn -> called_with_lines(command) end,
      port: fn -> port_lines(command) end
    ]

    rounds = Turns.each(ways, label: "#{@lines} short lines", rounds: 12, within_ms: 60_000)

    for {way, called} <- [send: "output: {:send, pid}", function: "output: a function"] do
      row(
        name: "short lines, #{called}, beside Port",
        rounds: Turns.beside(rounds, way, :port, &(1_000_000 * @lines / &1)),
        unit: "lines/s",
        better: :higher,
        target: {:ratio, 1.0}
      )
    end
  end

  defp sent_lines(command) do
    {us, @lines} =
      once(fn ->
        {:ok, worker} = Worker.start_link(cmd: command, output: {:send, self()}, active: true)
        count = count_sent(0)
        Process.unlink(worker)
        count
      end)

    us
  end

  defp count_sent(count) do
    receive do
      {Worker, _id, {:output, _line}} -> count_sent(count + 1)
      {Worker, _id, :eof} -> count
    end
  end

  defp called_with_lines(command) do
    counter = :counters.new(1, [])
    count = fn _line -> :counters.add(counter, 1, 1) end

    {us, :ok} =
      once(fn ->
        {:ok, worker} = Worker.start_link(cmd: command, output: count)
        monitor = Process.monitor(worker)
        receive do: ({:DOWN, ^monitor, :process, _worker, _reason} -> :ok)
      end)

    @lines = :counters.get(counter, 1)
    us
  end

  defp port_lines([program | args]) do
    {us, @lines} =
      once(fn ->
        options = [:binary, :exit_status, line: 1024, args: args]
        count_lines(Port.open({:spawn_executable, System.find_executable(program)}, options), 0)
      end)

    us
  end

  defp count_lines(port, count) do
    receive do
      {^port, {:data, {:eol, _line}}} -> count_lines(port, count + 1)
      {^port, {:exit_status, 0}} -> count
    end
  end

  defp repeat(0, _fun), do: :ok

  defp repeat(times, fun) do
    fun.()
    repeat(times - 1, fun)
  end
end
