defmodule Snakepit.Bench.Streams do
  @moduledoc """
  What passes between a program and the BEAM: a long stream, and many short requests.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.Bench.Turns
  alias Snakepit.Worker

  @block 65_536
  @gib 1024 * 1024 * 1024
  @packet_bytes 100
  # A round trip takes some 50 µs: enough of them that one that waited for a core does not matter.
  @trips 500

  @impl true
  def run, do: [stream() | round_trips()]

  defp stream do
    count = div(@gib, @block)
    arguments = ["if=/dev/zero", "bs=#{@block}", "count=#{count}", "status=none"]
    command = [System.find_executable("dd") | arguments]
    ways = [snakepit: fn -> snakepit_bytes(command) end, port: fn -> port_bytes(command) end]
    rounds = Turns.each(ways, label: "a stream of 1 GiB", rounds: 12, within_ms: 60_000)
    mb_per_second = fn us -> @gib / us end

    row(
      name: "stream of 1 GiB, beside Port",
      rounds: Turns.beside(rounds, :snakepit, :port, mb_per_second),
      unit: "MB/s",
      better: :higher,
      target: {:ratio, 1.3}
    )
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

  # `cat` answers each packet with the same: it neither knows nor needs to know what a packet is.
  defp round_trips do
    program = System.find_executable("cat")
    packet = :crypto.strong_rand_bytes(@packet_bytes)
    {:ok, worker} = Worker.start_link(cmd: [program], stdio: :pipe, packet: 4)

    ways = [
      worker: fn -> ask_worker(worker, packet) end,
      port: fn -> ask_port(program, packet) end
    ]

    opts = [rounds: 30, within_ms: 60_000, turn_ms: 300, calls: 3..100]
    rounds = Turns.run(ways, [label: "round trips of #{@packet_bytes} bytes"] ++ opts)
    :ok = Worker.stop(worker)

    [
      row(
        name: "packet: 4, round trips of #{@packet_bytes} bytes, beside Port",
        rounds: Turns.beside(rounds, :worker, :port, &(1_000_000 * @trips / percentile(&1, 50))),
        unit: "round trips/s",
        better: :higher,
        target: {:ratio, 1.0}
      )
    ]
  end

  defp ask_worker(worker, packet) do
    {us, :ok} =
      once(fn -> repeat(@trips, fn -> {:ok, ^packet} = Worker.request(worker, packet) end) end)

    us
  end

  # Owned by whoever asks; its start is not measured.
  defp ask_port(program, packet) do
    port = Port.open({:spawn_executable, program}, [:binary, packet: 4])

    ask = fn ->
      true = Port.command(port, packet)
      receive do: ({^port, {:data, ^packet}} -> :ok)
    end

    ask.()
    {us, :ok} = once(fn -> repeat(@trips, ask) end)
    Port.close(port)
    us
  end

  defp repeat(0, _fun), do: :ok

  defp repeat(times, fun) do
    fun.()
    repeat(times - 1, fun)
  end
end
