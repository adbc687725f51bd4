defmodule Snakepit.Bench.Ledger do
  @moduledoc """
  What a durable registration costs, and whether it is durable.
  """

  @behaviour Snakepit.Bench

  import Snakepit.Bench

  alias Snakepit.{Command, Guardian, Native}
  alias Snakepit.Bench.{SecondBeam, Spawning}
  alias Snakepit.Ledger.DeadRun
  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.Test.BeamPort

  @samples 2_000
  @at_once 1_000
  @rounds 5
  # What a record adds is small beside what the machine adds by itself: many short rounds.
  @spawn_rounds 40
  @few 25

  @impl true
  def run do
    alone() ++ at_once() ++ survival() ++ spawning()
  end

  defp alone do
    progress("one registration after the other")
    process = own_process()
    ours = samples(fn id -> register(id, process) end)
    dets = with_dets(fn table -> samples(fn id -> store_twice(table, id, process) end) end)

    [
      row(
        name: "reserve and activate, p50, beside two DETS inserts with sync",
        value: percentile(ours, 50),
        unit: "µs",
        baseline: percentile(dets, 50),
        target: {:value, 20.0}
      ),
      row(
        name: "reserve and activate, p99, beside two DETS inserts with sync",
        value: percentile(ours, 99),
        unit: "µs",
        baseline: percentile(dets, 99)
      )
    ]
  end

  defp samples(fun) do
    for number <- 1..@samples do
      id = "alone-#{System.unique_integer([:positive])}-#{number}"
      {us, :ok} = once(fn -> fun.(id) end)
      us
    end
  after
    forget_all()
  end

  defp at_once do
    rates =
      for round <- 1..@rounds do
        progress("#{@at_once} registrations at once, round #{round} of #{@rounds}")
        process = own_process()
        bench = self()

        owners =
          for number <- 1..@at_once do
            spawn_link(fn ->
              receive do: (:go -> :ok)
              :ok = register("at-once-#{round}-#{number}", process)
              send(bench, :registered)
              receive do: (:done -> :ok)
            end)
          end

        {us, _} =
          once(fn ->
            for owner <- owners, do: send(owner, :go)
            for _owner <- owners, do: receive(do: (:registered -> :ok))
          end)

        # The process that was registered is this BEAM, which nobody may end: forget before they go.
        forget_all()
        for owner <- owners, do: send(owner, :done)
        @at_once / (us / 1_000_000)
      end

    [
      row(
        name: "reserve and activate, by #{@at_once} processes at once",
        value: percentile(rates, 50),
        unit: "registrations/s",
        better: :higher,
        target: {:value, 20_000}
      )
    ]
  end

  @survival_rounds 20
  @writers 100
  @registrations 10_000

  # What was acknowledged comes over a socket, so the kernel has it when the BEAM is killed.
  defp survival do
    options = [:binary, packet: :line, active: true, backlog: @writers, ip: {127, 0, 0, 1}]
    {:ok, listener} = :gen_tcp.listen(0, options)

    {:ok, port} = :inet.port(listener)

    lost =
      for round <- 1..@survival_rounds do
        progress("kill -9 after a random registration, round #{round} of #{@survival_rounds}")
        with_directory(fn directory -> lost(directory, listener, port) end)
      end

    :gen_tcp.close(listener)

    [
      row(
        name: "acknowledged registrations lost at kill -9, #{@survival_rounds} rounds",
        value: Enum.sum(lost),
        unit: "",
        target: {:value, 0}
      )
    ]
  end

  defp lost(directory, listener, port) do
    beam = BeamPort.open(data_dir: directory)
    {:os_pid, os_pid} = Port.info(beam, :os_pid)
    :started = BeamPort.value(beam)

    BeamPort.tell(beam, """
    {:ok, {os_pid, identity}} = Snakepit.Native.process_lookup(String.to_integer(System.pid()))
    for writer <- 1..#{@writers} do
      spawn(fn ->
        {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, #{port}, [:binary])
        for number <- 1..#{div(@registrations, @writers)} do
          id = "\#{writer}-\#{number}"
          :ok = Snakepit.Pool.ProcessRegistry.reserve_worker(id)
          :ok = Snakepit.Pool.ProcessRegistry.activate_worker(id, self(), os_pid, identity: identity)
          :ok = :gen_tcp.send(socket, id <> "\\n")
        end
        Process.sleep(:infinity)
      end)
    end
    :writing
    """)

    sockets =
      for _writer <- 1..@writers do
        {:ok, socket} = :gen_tcp.accept(listener, 60_000)
        socket
      end

    fatal = :rand.uniform(@registrations)
    acknowledged = collect([], fatal, fn -> kill(os_pid) end)
    for socket <- sockets, do: :gen_tcp.close(socket)
    SecondBeam.await_end(beam)
    [run] = File.ls!(directory) -- ["instance"]
    dead = DeadRun.read(run, Path.join(directory, run), make_ref())

    recorded =
      for %{status: :active} = worker <- dead.workers, into: MapSet.new(), do: worker.worker_id

    Enum.count(acknowledged, &(&1 not in recorded))
  end

  # All lines until the last socket is closed. At the `fatal`th, the BEAM is killed.
  defp collect(lines, fatal, kill, open \\ @writers)
  defp collect(lines, _fatal, _kill, 0), do: lines

  defp collect(lines, fatal, kill, open) do
    receive do
      {:tcp, _socket, line} ->
        if fatal == 1, do: kill.()
        collect([String.trim(line) | lines], fatal - 1, kill, open)

      {:tcp_closed, _socket} ->
        collect(lines, fatal, kill, open - 1)
    after
      60_000 -> raise "#{open} writers neither write nor end"
    end
  end

  defp spawning do
    ways = [
      ledger: fn -> one_after_the_other(&start_recorded/2) end,
      bare: fn -> one_after_the_other(&start_bare/2) end
    ]

    rounds =
      for round <- 1..@spawn_rounds do
        if rem(round, 10) == 0,
          do: progress("spawn with and without a ledger, round #{round} of #{@spawn_rounds}")

        # By turns the one and the other first: the first may find the machine in another state.
        ways = if rem(round, 2) == 0, do: ways, else: Enum.reverse(ways)
        Map.new(ways, fn {way, fun} -> {way, percentile(fun.(), 50)} end)
      end

    [
      row(
        name: "reserve, fork, activate, release, p50, beside fork and release",
        rounds: Enum.map(rounds, &{&1.ledger, &1.bare}),
        unit: "µs",
        target: {:ratio, 1.1}
      )
    ]
  end

  defp one_after_the_other(start) do
    command = Command.new!(cmd: Spawning.command())

    times =
      for number <- 1..@few do
        {us, :ok} = once(fn -> start.(command, "spawn-#{number}") end)
        us
      end

    Spawning.end_all()
    ProcessRegistry.cleanup_dead_workers()
    times
  end

  defp start_recorded(command, id) do
    :ok = ProcessRegistry.reserve_worker(id)
    {:ok, child} = Guardian.spawn(command, worker_id: id)
    fingerprint = [identity: child.identity, command: command.cmd]
    :ok = ProcessRegistry.activate_worker(id, self(), child.os_pid, fingerprint)
    Guardian.release(child)
  end

  defp start_bare(command, id) do
    {:ok, child} = Guardian.spawn(command, worker_id: id)
    Guardian.release(child)
  end

  defp register(id, {os_pid, identity}) do
    :ok = ProcessRegistry.reserve_worker(id)
    fingerprint = [identity: identity, command: ["python3", "worker.py", "--port", "5000"]]
    ProcessRegistry.activate_worker(id, self(), os_pid, fingerprint)
  end

  # A process that can be registered again and again, and forgotten: it is gone.
  defp own_process do
    port = Port.open({:spawn_executable, System.find_executable("true")}, [:exit_status])
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    lookup = Native.process_lookup(os_pid)
    receive do: ({^port, {:exit_status, 0}} -> :ok)

    case lookup do
      {:ok, process} -> process
      # Too quick for us.
      {:error, _gone} -> own_process()
    end
  end

  defp forget_all, do: ProcessRegistry.cleanup_dead_workers()

  defp with_dets(fun) do
    with_directory(fn directory ->
      file = String.to_charlist(Path.join(directory, "baseline.dets"))
      {:ok, table} = :dets.open_file(make_ref(), file: file)
      times = fun.(table)
      :dets.close(table)
      times
    end)
  end

  defp store_twice(table, id, {os_pid, identity}) do
    :ok = :dets.insert(table, {id, :reserved})
    :ok = :dets.sync(table)
    :ok = :dets.insert(table, {id, :active, os_pid, identity})
    :dets.sync(table)
  end

  defp kill(os_pid) do
    {_output, 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
    :ok
  end
end
