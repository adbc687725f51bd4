defmodule Snakepit.Worker.ReadinessTest do
  use Snakepit.Test.WorkerCase, async: false

  @python System.find_executable("python3")

  # Listens after a moment, then tells in a file that it did.
  defp listener(family, address, marker) do
    code = """
    import socket, sys, time
    time.sleep(0.2)
    server = socket.socket(socket.AF_#{family})
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(#{address})
    open(#{inspect(marker)}, "w").close()
    server.listen()
    time.sleep(600)
    """

    [@python, "-c", code]
  end

  # Below those that the kernel hands out: one of these may be anybody's as soon as it is closed again.
  defp free_port do
    [first, _last] = "/proc/sys/net/ipv4/ip_local_port_range" |> File.read!() |> String.split()

    Enum.find(Enum.shuffle(10_000..(String.to_integer(first) - 1)), fn port ->
      with {:ok, socket} <- :gen_tcp.listen(port, []),
           do: :gen_tcp.close(socket) == :ok,
           else: (_ -> false)
    end)
  end

  test "a line of output: not before it has come, on either stream, as text or pattern" do
    for {script, pattern} <- [
          {"sleep 0.2; touch M; echo listening on 80; sleep 600", "listening"},
          {"sleep 0.2; touch M; echo listening on 80 >&2; sleep 600", ~r/on \d+$/m}
        ] do
      marker = temporary_path("marker")
      script = String.replace(script, "M", marker)
      {:ok, worker} = Worker.start_link(cmd: sh(script), ready: {:output, pattern})
      assert File.exists?(marker)
      assert {:ok, "listening on 80\n"} = Worker.output_tail(worker)
      assert Worker.stop(worker) == :ok
    end
  end

  test "a pong is no line of output: it waits for what was asked" do
    marker = temporary_path("marker")
    script = "sleep 0.5; touch #{marker}; echo up; exec sleep 600"

    {:ok, worker} =
      Worker.start_link(
        cmd: sh(script),
        ready: {:output, "up"},
        heartbeat: [ping_interval: 20],
        ping: fn -> :ok end
      )

    assert File.exists?(marker)
    assert Worker.stop(worker) == :ok
  end

  test "a line that never ends does not become ready" do
    {:error, error} =
      Worker.start_link(
        cmd: ["cat", "/dev/zero"],
        stdio: :pipe,
        packet: :line,
        max_packet: 100_000,
        ready: {:output, "up"}
      )

    assert Exception.message(error) =~ ":max_packet"
  end

  test "output over a pipe: in packets, or in pieces without any" do
    raw = sh("printf rea; sleep 0.05; printf dy; sleep 600")
    {:ok, worker} = Worker.start_link(cmd: raw, stdio: :pipe, ready: {:output, "ready"})
    assert Worker.stop(worker) == :ok

    line = sh("echo one; echo ready; sleep 600")
    opts = [stdio: :pipe, packet: :line, output: {:send, self()}, ready: {:output, ~r/^ready/}]
    {:ok, _worker} = Worker.start_link([cmd: line, id: "lines"] ++ opts)
    assert_received {Worker, "lines", {:output, "one\n"}}
    assert_received {Worker, "lines", {:output, "ready\n"}}
  end

  test "a TCP or Unix port that accepts" do
    {port, path} = {free_port(), temporary_path("socket")}

    for {ready, family, address} <- [
          {{:tcp, port}, "INET", "('127.0.0.1', #{port})"},
          {{:unix, path}, "UNIX", inspect(path)}
        ] do
      marker = temporary_path("marker")
      {:ok, worker} = Worker.start_link(cmd: listener(family, address, marker), ready: ready)
      assert File.exists?(marker)
      assert Worker.stop(worker) == :ok
    end
  end

  test "a function, without argument or with what it needs" do
    marker = temporary_path("marker")
    cmd = sh("sleep 0.2; touch #{marker}; sleep 600")
    {:ok, _} = Worker.start_link(cmd: cmd, ready: fn -> File.exists?(marker) end)
    assert File.exists?(marker)

    test = self()
    ready = fn info -> send(test, info) && :ok end
    {:ok, worker} = Worker.start_link(id: "asked", cmd: ["sleep", "600"], ready: ready)
    os_pid = Worker.os_pid!(worker)
    assert_received %{id: "asked", os_pid: ^os_pid}
  end

  test "the first pong" do
    cmd = [@python, fixture("lifeline.py"), "late", "200"]
    {:ok, worker} = Worker.start_link(cmd: cmd, heartbeat: true, ready: :heartbeat)
    assert %{status: :healthy, pongs_received: 1} = Worker.info!(worker).heartbeat
  end

  @tag :long
  # Together, because each takes all of its time: enough for a shell to say two words on any machine.
  test "not in time: why, with the output, and nothing is left" do
    before = remains()

    [
      {[ready: {:output, "never"}], "trying\nhard\n"},
      {[ready: {:output, "never"}, stdio: :pipe], "hard\n"},
      {[ready: {:tcp, free_port()}], "trying\nhard\n"},
      {[ready: {:unix, "/no/such/socket"}], "trying\nhard\n"},
      {[ready: fn -> false end], "trying\nhard\n"},
      {[ready: fn -> Process.sleep(:infinity) end], "trying\nhard\n"},
      {[ready: :heartbeat, heartbeat: true], "trying\nhard\n"}
    ]
    |> Enum.map(fn {opts, output} ->
      Task.async(fn ->
        Process.flag(:trap_exit, true)
        token = Snakepit.Test.Family.token()
        cmd = sh("echo trying; echo hard >&2; exec sleep #{token}")
        answer = Worker.start_link([cmd: cmd, ready_timeout: 2_000] ++ opts)
        {answer, output, Snakepit.Test.Family.members(token)}
      end)
    end)
    |> Task.await_many(60_000)
    |> Enum.each(fn {answer, output, left} ->
      assert {:error, %Error{reason: :not_ready, output: ^output} = error} = answer
      assert Exception.message(error) =~ "not ready within 2000 ms"
      assert Exception.message(error) =~ "hard"
      assert left == []
    end)

    assert remains() -- before == []
  end

  test "ended before it was ready: how, with the output" do
    for {script, reason, text} <- [
          {"echo no config; exit 4", :exit_status, "status 4"},
          {"echo no config; exit 0", :exit_status,
           "status 0 before it was ready; a worker's program must stay in the foreground; its last output"},
          {"echo no config; kill -SEGV $$", :exit_signal, "sigsegv"}
        ],
        ready <- [{:output, "never"}, fn -> false end] do
      assert {:error, %Error{reason: ^reason, output: "no config\n"} = error} =
               Worker.start_link(cmd: sh(script), ready: ready)

      assert Exception.message(error) =~ text
    end
  end

  test "a program that moves to the background is told what it left behind" do
    token = Snakepit.Test.Family.token()
    daemon = "(trap '' TERM; echo deaf; exec sleep #{token})"

    assert {:error, error} =
             Worker.start_link(
               cmd: sh("{ #{daemon} & } | { read deaf; exit 0; }"),
               ready: {:output, "never"}
             )

    assert Exception.message(error) =~
             "ended with status 0 before it was ready; it left a process behind, which was killed; " <>
               "a worker's program must stay in the foreground"

    assert Snakepit.Test.Family.members(token) == []
  end

  test "a function that crashes is a failure, at once" do
    assert {:error, %Error{reason: :not_ready} = error} =
             Worker.start_link(cmd: ["sleep", "600"], ready: fn -> raise "no idea" end)

    assert Exception.message(error) =~ "no idea"
  end

  test "the parent's death ends what is not ready yet" do
    token = Snakepit.Test.Family.token()
    opts = [cmd: ["sleep", token], ready: fn -> false end, ready_timeout: 60_000]
    parent = spawn(fn -> Worker.start_link(opts) end)
    eventually(fn -> length(Snakepit.Test.Family.members(token)) == 1 end)
    Process.exit(parent, :kill)
    eventually(fn -> Snakepit.Test.Family.members(token) == [] end)
  end
end
