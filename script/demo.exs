# A second BEAM starts a pool of Python workers that do everything to be hard to find: children in their
# group, children in sessions of their own, and daemons that forked twice and threw away their
# environment. Then it gets `kill -9`, and this one watches /proc until every process is gone.

defmodule Demo do
  @workers 25
  # How long the processes sleep is how the judge knows them: nobody else sleeps for that long.
  @token "86400.#{System.pid()}"

  def run do
    bystanders = for _ <- 1..3, do: start_bystander()
    {port, beam} = start_beam()
    guardian = String.to_integer(await(port, "guardian"))
    healthy = await(port, "healthy")
    family = wait_for_family()

    say(
      "A second BEAM (#{beam}) started #{@workers} Python workers through its guardian (#{guardian});"
    )

    say(
      "#{healthy} of them answer their heartbeats. Each has a child in its group, one in its own session,"
    )

    say(
      "and a daemon that forked twice and has an empty environment: #{length(family)} processes in all.\n"
    )

    show_one_family(family, guardian)

    say("\nkill -9 #{beam}\n")
    begun = now()
    {_output, 0} = System.cmd("kill", ["-KILL", Integer.to_string(beam)])
    last = watch(family ++ [guardian], begun, begun + 20_000_000, length(family) + 1)

    survivors = Enum.count(with_token(), &running?/1)
    unharmed = Enum.count(bystanders, fn {_port, os_pid} -> running?(os_pid) end)
    say("\nEvery process, and then the guardian itself, was gone after #{ms(last - begun)} ms.")
    say("Bystanders with the same name still running: #{unharmed} of #{length(bystanders)}")
    for {_port, os_pid} <- bystanders, do: System.cmd("kill", [Integer.to_string(os_pid)])
    show_history()
    File.rm_rf!(data_dir())
    say("survivors=#{survivors}")
    if survivors > 0 or unharmed < length(bystanders), do: System.halt(1)
  end

  defp start_bystander do
    sleep = System.find_executable("sleep")
    port = Port.open({:spawn_executable, sleep}, args: ["86399"])
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    {port, os_pid}
  end

  defp start_beam do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(data_dir())})
    {:ok, _} = Application.ensure_all_started(:snakepit)
    IO.puts("guardian \#{Snakepit.Guardian.os_pid()}")

    worker = [
      cmd: ["python3", #{inspect(worker())}, #{inspect(@token)}],
      env: [{"PYTHONPATH", Application.app_dir(:snakepit, "priv/python")}],
      heartbeat: [ping_interval: 500],
      ready: :heartbeat
    ]

    {:ok, pool} = Snakepit.Pool.start_link(size: #{@workers}, worker: worker)
    :ok = Snakepit.Pool.await_ready(pool, 60_000)
    healths = for %{pid: pid} <- Snakepit.Pool.list_workers(pool), do: Snakepit.Worker.info!(pid).heartbeat
    IO.puts("healthy \#{Enum.count(healths, &(&1.status == :healthy))}")
    Process.sleep(:infinity)
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    options = [:binary, line: 1_000, args: ["-pa", ebin, "-e", code]]
    port = Port.open({:spawn_executable, System.find_executable("elixir")}, options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    {port, os_pid}
  end

  # The next start finds what the guardian wrote down, and closes the dead run's record.
  defp show_history do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(data_dir())})
    {:ok, _} = Application.ensure_all_started(:snakepit)

    for run <- Snakepit.RunState.history() do
      IO.puts("  run \#{run.run_id} of BEAM \#{run.beam_pid}: got as far as \#{inspect(run.state)}, " <>
        "ended by \#{inspect(run.terminated_by)}, " <>
        "\#{run.found} processes found, \#{run.killed} had to be killed, \#{run.gone} gone")
    end
    """

    say("\nWhat the next start on the same data directory knows of it:\n")
    ebin = Application.app_dir(:snakepit, "ebin")
    {_output, 0} = System.cmd("elixir", ["-pa", ebin, "-e", code], into: IO.stream())
    say("")
  end

  defp data_dir, do: Path.join(System.tmp_dir!(), "snakepit_demo_#{System.pid()}")

  defp worker, do: Path.join(__DIR__, "demo_worker.py")

  defp await(port, word) do
    receive do
      {^port, {:data, {:eol, line}}} ->
        case String.split(line, " ", parts: 2) do
          [^word, value] -> value
          _other -> await(port, word)
        end
    after
      90_000 -> raise "the second BEAM did not get ready"
    end
  end

  defp wait_for_family do
    case with_token() do
      family when length(family) == 4 * @workers -> family
      _not_yet -> wait_for_family()
    end
  end

  defp show_one_family(family, guardian) do
    entries = for os_pid <- family, {:ok, entry} <- [stat(os_pid)], do: entry

    leader =
      Enum.find(
        entries,
        &(&1.parent == guardian and File.read("/proc/#{&1.os_pid}/environ") != {:ok, ""})
      )

    children = Enum.filter(entries, &(&1.parent == leader.os_pid))

    # The guardian's children are the workers' leaders and the daemons; those have no environment.
    daemon =
      Enum.find(
        entries,
        &(&1.parent == guardian and File.read("/proc/#{&1.os_pid}/environ") == {:ok, ""})
      )

    line(leader, guardian, "the worker")

    for child <- children,
        do:
          line(
            child,
            guardian,
            if(child.session == leader.os_pid, do: "in its group", else: "own session")
          )

    line(daemon, guardian, "a daemon: its parents are gone, the guardian adopted it")
  end

  defp line(entry, guardian, what) do
    parent = if entry.parent == guardian, do: "guardian", else: Integer.to_string(entry.parent)

    say(
      "  pid #{pad(entry.os_pid)}  session #{pad(entry.session)}  parent #{String.pad_trailing(parent, 8)}  #{what}"
    )
  end

  # Prints a line whenever noticeably fewer are left, and gives the time at which the last was gone.
  defp watch(os_pids, begun, deadline, shown) do
    left = Enum.filter(os_pids, &running?/1)
    time = now()
    step? = length(left) <= shown * 0.8 or left == []
    if step?, do: bar(time - begun, length(left))

    cond do
      left == [] -> time
      time > deadline -> deadline
      true -> watch(left, begun, deadline, if(step?, do: length(left), else: shown))
    end
  end

  defp bar(time, count) do
    say(
      "  #{String.pad_leading(ms(time), 7)} ms  #{pad(count)} left  #{String.duplicate("█", ceil(count / 2))}"
    )
  end

  # The judge: reads /proc itself and shares nothing with what it judges.
  defp with_token do
    for name <- File.ls!("/proc"),
        {os_pid, ""} <- [Integer.parse(name)],
        {:ok, command} <- [File.read("/proc/#{os_pid}/cmdline")],
        command |> String.split(<<0>>, trim: true) |> List.last() == @token,
        do: os_pid
  end

  defp running?(os_pid) do
    case stat(os_pid) do
      {:ok, %{state: state}} -> state not in ["Z", "X"]
      :gone -> false
    end
  end

  defp stat(os_pid) do
    case File.read("/proc/#{os_pid}/stat") do
      {:ok, text} ->
        [_name, rest] = String.split(text, ") ", parts: 2)
        [state, parent, _group, session | _] = String.split(rest, " ")

        numbers = [
          os_pid: os_pid,
          parent: String.to_integer(parent),
          session: String.to_integer(session)
        ]

        {:ok, Map.new([state: state] ++ numbers)}

      {:error, _reason} ->
        :gone
    end
  end

  defp now, do: System.monotonic_time(:microsecond)
  defp ms(microseconds), do: :erlang.float_to_binary(microseconds / 1000, decimals: 1)
  defp pad(number), do: number |> Integer.to_string() |> String.pad_leading(6)
  defp say(text), do: IO.puts(text)
end

Demo.run()
