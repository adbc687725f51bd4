defmodule Snakepit.GRPCWorkerTest do
  # A real server on grpcio behind each test.
  use Snakepit.Test.WorkerCase

  alias Snakepit.{GRPCWorker, Pool}
  alias Snakepit.Test

  import ExUnit.CaptureLog

  @moduletag :long
  @moduletag timeout: 180_000
  @moduletag skip: Test.GRPC.skip()
  @moduletag :capture_log

  # For calls that are to be answered, however busy the machine is.
  @patient 60_000

  defp execute(worker, command, arguments \\ %{}, opts \\ []),
    do: GRPCWorker.execute(worker, command, arguments, Keyword.put_new(opts, :timeout, @patient))

  defp pool(opts \\ [], worker \\ []) do
    opts = [size: 2, worker: {GRPCWorker, Test.GRPC.service(worker)}] ++ opts
    {:ok, pool} = Pool.start_link(opts)
    :ok = Pool.await_ready(pool, @patient)
    pool
  end

  # Has a command begin that ends when the file is removed, in a task, and returns when it runs.
  defp begin(worker, opts \\ []) do
    path = temporary_path("held")
    task = Task.async(fn -> execute(worker, "wait_for", %{path: path}, opts) end)
    {task, path, eventually(fn -> number_in(path) end, @patient)}
  end

  describe "a server" do
    test "listens where it has picked, says so, and is told what the earlier Snakepit told it" do
      worker = Test.GRPC.start(elixir_address: "localhost:50051")
      {:ok, "127.0.0.1:" <> port} = GRPCWorker.address(worker)
      assert String.to_integer(port) > 0
      assert Worker.info!(worker).notify.address == "127.0.0.1:" <> port

      {:ok, told} = execute(worker, "addresses")
      assert told["elixir_address"] == "localhost:50051"

      assert told["arguments"] ==
               [
                 "--port",
                 "0",
                 "--elixir-address",
                 "localhost:50051",
                 "--run-id",
                 Snakepit.run_id()
               ]

      assert :ok = Worker.stop(worker)
    end

    test "listens on a socket without a file" do
      worker = Test.GRPC.start(socket: :abstract)
      assert {:ok, "unix-abstract:" <> _} = GRPCWorker.address(worker)
      assert execute(worker, "echo", %{value: 1}) == {:ok, 1}
    end

    test "has heartbeats over gRPC" do
      worker = Test.GRPC.start(heartbeat: [ping_interval: 20])
      eventually(fn -> Worker.info!(worker).heartbeat.pongs_received > 3 end)
      assert Worker.info!(worker).heartbeat.missed_heartbeats == 0
    end

    test "that is busy with as many commands as it takes still gives signs of life, and refuses one more" do
      worker = Test.GRPC.start(env: [{"THREADS", "2"}], heartbeat: [ping_interval: 20])
      held = for _ <- 1..2, do: begin(worker)
      pongs = Worker.info!(worker).heartbeat.pongs_received
      assert {:error, %Error{reason: :resource_exhausted}} = execute(worker, "pid")
      eventually(fn -> Worker.info!(worker).heartbeat.pongs_received > pongs + 3 end)
      for {_task, path, _os_pid} <- held, do: File.rm!(path)
      for {task, _path, _os_pid} <- held, do: assert(Task.await(task, @patient) == {:ok, "ended"})
    end

    test "that hangs is found by its heartbeats, and replaced" do
      pool =
        pool([size: 1],
          heartbeat: [ping_interval: 50, timeout_threshold: 1_000, max_missed_heartbeats: 2]
        )

      {:ok, os_pid} = Snakepit.execute("pid", %{}, pool: pool, timeout: @patient)
      kill(os_pid, "STOP")
      # Until it is known the worker is lent, and the caller is told.
      eventually(fn -> not ProcScan.running?(os_pid) end, @patient)
      assert {:ok, other} = Snakepit.execute("pid", %{}, pool: pool, timeout: @patient)
      assert other != os_pid
    end

    test "that is never healthy is an error with what was missing and the end of its output" do
      opts = Test.GRPC.service(ready_timeout: 3_000)
      opts = Keyword.update!(opts, :cmd, &(&1 ++ ["--never-healthy"]))
      assert {:error, %Error{reason: :not_ready} = error} = GRPCWorker.start_link(opts)
      assert Exception.message(error) =~ "its health service says NOT_SERVING"
      assert Exception.message(error) =~ "loading a model that is not there"
    end

    test "that announces no address is an error that says so" do
      opts = [cmd: sh("echo I am no server; exec sleep 60 #"), ready_timeout: 500]
      assert {:error, %Error{reason: :not_ready} = error} = GRPCWorker.start_link(opts)
      assert Exception.message(error) =~ "it has not announced its address"
      assert Exception.message(error) =~ "I am no server"
    end

    test "that speaks no HTTP/2 is an error that says so" do
      {:ok, listener} = :gen_tcp.listen(0, [:binary, ip: {127, 0, 0, 1}, active: false])
      {:ok, port} = :inet.port(listener)

      spawn_link(fn -> speak_http1(listener) end)
      # The listener of this test answers in its place.
      opts = [cmd: sh("exec sleep 60 #"), address: "127.0.0.1:#{port}", ready_timeout: 1_000]
      assert {:error, %Error{reason: :not_ready} = error} = GRPCWorker.start_link(opts)
      assert Exception.message(error) =~ "does not speak HTTP/2"
    end

    test "that cannot say where it listens is found where its worker says" do
      path = temporary_path("known.sock")
      opts = Test.GRPC.service(address: "unix:" <> path)
      worker = Test.GRPC.start(Keyword.update!(opts, :cmd, &(&1 ++ ["--socket", path])))
      assert execute(worker, "echo", %{value: 1}) == {:ok, 1}
    end

    test "is not reached by the client of a package that is not there, and the error says so" do
      opts = Test.GRPC.service(client: GRPCWorker.Client.Stub, ready_timeout: 2_000)
      assert {:error, %Error{reason: :not_ready} = error} = GRPCWorker.start_link(opts)
      assert Exception.message(error) =~ "the package grpc is not among the dependencies"
    end

    test "whose port is taken is an error that names it" do
      {:ok, listener} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
      {:ok, port} = :inet.port(listener)

      assert {:error, %Error{reason: :exit_status} = error} =
               GRPCWorker.start_link(Test.GRPC.service(port: port))

      assert Exception.message(error) =~ "cannot listen on 127.0.0.1:#{port}"
    end

    test "does not share its port with another" do
      worker = Test.GRPC.start()
      {:ok, "127.0.0.1:" <> port} = GRPCWorker.address(worker)

      assert {:error, %Error{reason: :exit_status} = error} =
               GRPCWorker.start_link(Test.GRPC.service(port: String.to_integer(port)))

      assert Exception.message(error) =~ "cannot listen on 127.0.0.1:#{port}"
    end

    test "takes over the socket of one that was killed, and not that of one that lives" do
      path = temporary_path("service.sock")
      Process.flag(:trap_exit, true)
      killed = Test.GRPC.start(socket: path)
      assert File.stat!(path).mode |> Bitwise.band(0o077) == 0
      kill(Worker.os_pid!(killed))
      assert {:exit_signal, :sigkill} = await_down(killed)
      assert File.exists?(path)

      worker = Test.GRPC.start(socket: path)
      assert GRPCWorker.address(worker) == {:ok, "unix:" <> path}
      assert execute(worker, "echo", %{value: 1}) == {:ok, 1}

      assert {:error, error} = GRPCWorker.start_link(Test.GRPC.service(socket: path))
      assert Exception.message(error) =~ "another server listens there"
      assert execute(worker, "echo", %{value: 2}) == {:ok, 2}
    end

    test "does not remove a file that is no socket" do
      path = temporary_path("precious")
      File.write!(path, "precious")
      assert {:error, error} = GRPCWorker.start_link(Test.GRPC.service(socket: path))
      assert Exception.message(error) =~ "a file of that name is there"
      assert File.read!(path) == "precious"
    end
  end

  describe "a call" do
    setup do
      %{worker: Test.GRPC.start()}
    end

    test "carries values both ways", %{worker: worker} do
      for value <- [
            nil,
            true,
            false,
            0,
            -1,
            9_223_372_036_854_775_807,
            -9_223_372_036_854_775_808,
            1.5,
            -0.0,
            :infinity,
            :neg_infinity,
            :nan,
            "",
            "grün",
            <<255, 0, 1>>,
            [],
            [1, [2, [3]]],
            %{},
            %{"a" => %{1 => [nil, true]}}
          ],
          do: assert(execute(worker, "echo", %{value: value}) == {:ok, value})

      assert execute(worker, "echo", value: {:a, "b"}) == {:ok, ["a", "b"]}
      assert execute(worker, "echo", value: {:bytes, "text"}) == {:ok, "text"}
    end

    test "that cannot be carried is an error that names the part", %{worker: worker} do
      assert {:error, %Error{reason: :einval} = error} =
               execute(worker, "echo", %{value: [%{a: self()}]})

      assert error.detail =~ "the argument[:value][0][:a], #PID<"

      assert {:error, %Error{reason: :exception} = error} = execute(worker, "unspeakable")
      assert error.detail =~ "the result['here'][1] is of the type object"

      assert {:error, %Error{reason: :einval}} =
               execute(worker, "echo", value: Bitwise.bsl(1, 63))
    end

    test "that is nested too deeply is refused, both ways", %{worker: worker} do
      deep = Enum.reduce(1..100, 1, fn _, value -> [value] end)
      assert {:error, %Error{reason: :einval} = error} = execute(worker, "echo", value: deep)
      assert error.detail =~ "nested deeper"
      assert {:error, %Error{reason: :exception} = error} = execute(worker, "nested", depth: 100)
      assert error.detail =~ "nested deeper"
    end

    test "that raises is an error with the traceback, and the server lives on", %{worker: worker} do
      {:ok, os_pid} = execute(worker, "pid")

      assert {:error, %Error{reason: :exception} = error} =
               execute(worker, "fail", message: "oops ü")

      assert error.detail =~ ~s("fail" raised ValueError: oops ü)
      assert error.detail =~ "in fail"
      assert execute(worker, "pid") == {:ok, os_pid}
    end

    test "of a command that is not there says which are", %{worker: worker} do
      assert {:error, %Error{reason: :unimplemented} = error} = execute(worker, "ekko")
      assert error.detail =~ "echo"
    end

    test "of a method that is not there, or of no gRPC message, is an error", %{worker: worker} do
      assert {:error, %Error{reason: :unimplemented}} =
               GRPCWorker.call(worker, "/no.Such/Method", "")

      assert {:error, %Error{reason: :invalid_argument}} =
               GRPCWorker.call(worker, "/snakepit.Commands/Execute", <<255>>)

      assert_raise ArgumentError, fn -> GRPCWorker.call(worker, "no path", "") end
    end

    test "ends at its deadline, and the next one is answered", %{worker: worker} do
      {task, path, _os_pid} = begin(worker, timeout: 2_000)
      assert {:error, %Error{reason: :timeout}} = Task.await(task, @patient)
      assert execute(worker, "echo", value: 1) == {:ok, 1}
      File.rm!(path)
    end

    test "of 64 at once gets its own answer" do
      worker = Test.GRPC.start(env: [{"THREADS", "64"}])
      calls = for n <- 1..64, do: Task.async(fn -> {n, execute(worker, "echo", value: n)} end)
      for {n, answer} <- Task.await_many(calls, @patient), do: assert(answer == {:ok, n})
    end

    test "with a message beyond the limit is refused before it is sent, or before it is received",
         %{
           worker: worker
         } do
      most = 4 * 1024 * 1024

      assert {:error, %Error{reason: :emsgsize} = error} =
               execute(worker, "echo", value: String.duplicate("x", most))

      assert error.detail =~ "longer than the :max_message of #{most}"
      # The server refuses to send it.
      assert {:error, %Error{reason: :resource_exhausted}} =
               execute(worker, "bytes_of", size: most)

      assert execute(worker, "echo", value: 1) == {:ok, 1}
    end

    test "may be as long as the worker allows" do
      worker = Test.GRPC.start(max_message: 32 * 1024 * 1024)
      value = :crypto.strong_rand_bytes(20 * 1024 * 1024)
      assert {:ok, answer} = execute(worker, "echo", value: value)
      assert answer == value
    end

    test "whose caller ends is cancelled", %{worker: worker} do
      path = temporary_path("count")
      arguments = %{to: 1_000_000, path: path}
      wait = fn _part -> Process.sleep(:infinity) end

      caller =
        spawn(fn ->
          GRPCWorker.execute_stream(worker, "count", arguments, wait, timeout: :infinity)
        end)

      eventually(fn -> number_in(path) end, @patient)
      Process.exit(caller, :kill)
      eventually(fn -> number_in(path <> ".closed") end, @patient)
      File.rm!(path <> ".closed")
    end
  end

  describe "a stream" do
    setup do
      %{worker: Test.GRPC.start()}
    end

    test "has its parts in order", %{worker: worker} do
      me = self()
      assert :ok = GRPCWorker.execute_stream(worker, "count", %{to: 500}, &send(me, {:part, &1}))
      for n <- 0..499, do: assert_received({:part, ^n})
    end

    test "of a command that raises has what came before, and the error", %{worker: worker} do
      me = self()

      assert {:error, %Error{reason: :exception, detail: detail}} =
               GRPCWorker.execute_stream(worker, "fail_after", %{to: 3}, &send(me, {:part, &1}))

      assert detail =~ "ValueError: no more"
      for n <- 0..2, do: assert_received({:part, ^n})
    end

    test "that is abandoned is cancelled on the server, and was not made ahead", %{worker: worker} do
      path = temporary_path("count")
      enough = &if(&1 == 2, do: throw(:enough))
      # Without a deadline, at which the server would end it by itself.
      count = fn ->
        arguments = %{to: 10_000_000, path: path}
        GRPCWorker.execute_stream(worker, "count", arguments, enough, timeout: :infinity)
      end

      assert catch_throw(count.()) == :enough
      made = eventually(fn -> number_in(path <> ".closed") end, @patient)
      # What windows and buffers on the way hold, and not all that there is.
      assert made < 1_000_000
      File.rm!(path <> ".closed")
      assert execute(worker, "echo", value: 1) == {:ok, 1}
    end

    test "is made only as fast as it is read", %{worker: worker} do
      {:ok, message} =
        Snakepit.GRPC.Messages.execute("chunks", %{number: 1_000, size: 100_000}, nil)

      path = Snakepit.GRPC.Messages.execute_stream_path()
      {:ok, connection} = GRPCWorker.channel(worker)

      worker
      |> GRPCWorker.stream(path, message)
      |> Stream.take(30)
      |> Enum.each(fn {:ok, _chunk} ->
        # A window of a stream, and a message that is not whole.
        assert eventually(fn -> held(connection) < 600_000 end)
      end)
    end

    test "ends at its deadline", %{worker: worker} do
      assert {:error, %Error{reason: :timeout}} =
               GRPCWorker.execute_stream(worker, "count", %{to: 10_000_000}, fn _ -> :ok end,
                 timeout: 500
               )
    end

    test "of messages beyond the limit ends with an error", %{worker: worker} do
      {:ok, message} = Snakepit.GRPC.Messages.execute("chunks", %{number: 3, size: 100_000}, nil)
      path = Snakepit.GRPC.Messages.execute_stream_path()

      assert [{:error, %Error{reason: :emsgsize} = error}] =
               worker |> GRPCWorker.stream(path, message, max_message: 50_000) |> Enum.to_list()

      assert error.detail =~ "longer than the :max_message of 50000"
    end
  end

  # What a connection and the messages that it has hold of binaries.
  defp held(connection) do
    {:binary, binaries} = Process.info(connection, :binary)
    binaries |> Enum.uniq_by(&elem(&1, 0)) |> Enum.map(&elem(&1, 1)) |> Enum.sum()
  end

  describe "the end" do
    test "of a server in the middle of a call is told to the caller, and the next call is answered" do
      pool = pool(size: 1)

      for _ <- 1..5 do
        path = temporary_path("held")

        call =
          Task.async(fn ->
            Snakepit.execute("wait_for", %{path: path}, pool: pool, timeout: @patient)
          end)

        os_pid = eventually(fn -> number_in(path) end, @patient)
        kill(os_pid)
        assert {:error, %Error{reason: :worker_down}} = Task.await(call, @patient)
        assert {:ok, next} = Snakepit.execute("pid", %{}, pool: pool, timeout: @patient)
        assert next != os_pid
      end
    end

    test "of a stream's server is told to its reader" do
      worker = Test.GRPC.start()
      {:ok, os_pid} = execute(worker, "pid")

      assert {:error, %Error{reason: :worker_down}} =
               GRPCWorker.execute_stream(worker, "count", %{to: 10_000_000}, fn n ->
                 if n == 3, do: kill(os_pid)
               end)
    end

    test "that is asked for lets calls end that run, and refuses others" do
      worker = Test.GRPC.start(stop_timeout: 60_000)
      {task, path, os_pid} = begin(worker)
      {:ok, link} = Worker.client(worker, 5_000)
      stop = Task.async(fn -> Worker.stop(worker) end)

      # The server stops when its health service says so or is not to be had any more.
      eventually(fn ->
        case Snakepit.GRPCWorker.Link.channel(link, 1_000) do
          {:ok, %{client: client, channel: channel}} ->
            opts = %{timeout: 1_000, max_message: 1_000, metadata: []}
            match?({:error, _}, client.call(channel, "/grpc.health.v1.Health/Check", "", opts))

          {:error, _gone} ->
            true
        end
      end)

      assert ProcScan.running?(os_pid)
      File.rm!(path)
      assert Task.await(task, @patient) == {:ok, "ended"}
      assert Task.await(stop, @patient) == :ok
      refute ProcScan.running?(os_pid)
    end

    test "comes at the end of the grace period, whatever runs" do
      worker = Test.GRPC.start(stop_timeout: 1_000)
      {task, path, os_pid} = begin(worker)
      assert :ok = Worker.stop(worker)
      refute ProcScan.running?(os_pid)
      assert {:error, %Error{}} = Task.await(task, @patient)
      File.rm!(path)
    end

    test "is at once when the worker is killed" do
      Process.flag(:trap_exit, true)
      worker = Test.GRPC.start(stop_timeout: 60_000)
      {task, path, os_pid} = begin(worker)
      Process.exit(worker, :kill)
      assert {:error, %Error{reason: :worker_down}} = Task.await(task, @patient)
      eventually(fn -> not ProcScan.running?(os_pid) end)
      File.rm!(path)
    end
  end

  test "when the guardian is lost, the server is started again, and calls wait for it" do
    fresh_supervisor()
    worker = Test.GRPC.start()
    {:ok, before} = execute(worker, "pid")
    {:ok, address} = GRPCWorker.address(worker)

    log =
      capture_log(fn ->
        kill(Snakepit.Guardian.os_pid())
        eventually(fn -> not ProcScan.running?(before) end)

        again =
          eventually(
            fn -> with({:ok, pid} <- execute(worker, "pid"), do: pid, else: (_ -> nil)) end,
            @patient
          )

        assert again != before
      end)

    assert log =~ "guardian"
    refute GRPCWorker.address(worker) == {:ok, address}
    assert Process.alive?(worker)
  end

  test "a connection that is lost while the server lives is made again" do
    worker = Test.GRPC.start()
    {:ok, os_pid} = execute(worker, "pid")
    {task, path, ^os_pid} = begin(worker)
    {:ok, connection} = GRPCWorker.channel(worker)
    Process.exit(connection, :kill)
    assert {:error, %Error{reason: :worker_down}} = Task.await(task, @patient)
    assert execute(worker, "pid") == {:ok, os_pid}
    refute GRPCWorker.channel(worker) == {:ok, connection}
    File.rm!(path)
  end

  describe "a pool" do
    test "has commands carried out by whichever worker is free" do
      pool = pool()

      calls =
        for n <- 1..40,
            do:
              Task.async(fn ->
                {n, Snakepit.execute("echo", %{value: n}, pool: pool, timeout: @patient)}
              end)

      for {n, answer} <- Task.await_many(calls, @patient), do: assert(answer == {:ok, n})
    end

    test "gives the calls of a session the same worker" do
      pool = pool(size: 3)
      opts = [pool: pool, timeout: @patient, session_id: "s1", affinity: :strict]
      assert Snakepit.execute("session", %{}, opts) == {:ok, "s1"}
      assert Snakepit.execute("session", %{}, pool: pool, timeout: @patient) == {:ok, nil}
      pids = for _ <- 1..10, do: Snakepit.execute("pid", %{}, opts)
      assert [{:ok, _os_pid}] = Enum.uniq(pids)
    end

    test "streams" do
      pool = pool(size: 1)
      me = self()
      assert :ok = Snakepit.execute_stream("count", %{to: 3}, &send(me, {:part, &1}), pool: pool)
      for n <- 0..2, do: assert_received({:part, ^n})
    end

    test "survives servers that are killed and leave during calls: each caller has its own answer or a clear error" do
      pool = pool(size: 4)

      answers =
        1..400
        |> Task.async_stream(
          fn
            n when rem(n, 50) == 0 ->
              {n, Snakepit.execute("leave", %{status: 3}, pool: pool, timeout: @patient)}

            n ->
              {n, Snakepit.execute("echo", %{value: n}, pool: pool, timeout: @patient)}
          end,
          max_concurrency: 32,
          timeout: 2 * @patient
        )
        |> Enum.map(fn {:ok, answer} -> answer end)

      for {n, answer} <- answers do
        case answer do
          {:ok, value} -> assert value == n
          {:error, %Error{reason: reason}} -> assert reason == :worker_down, inspect(answer)
        end
      end

      assert Enum.count(answers, &match?({_n, {:ok, _}}, &1)) >= 380
    end

    test "of other workers, or none, is refused with the remedy" do
      {:ok, pool} = Pool.start_link(size: 1, worker: [cmd: ["sleep", "60"]])

      assert_raise ArgumentError, ~r/Snakepit.GRPCWorker/, fn ->
        Snakepit.execute("ping", %{}, pool: pool)
      end

      assert {:error, %Error{reason: :pool_down}} =
               Snakepit.execute("ping", %{}, pool: :no_such_pool)

      assert_raise ArgumentError, ~r/:pools/, fn -> Snakepit.execute("ping") end
    end
  end

  test "options that are another's, or wrong, are refused before anything starts" do
    for opts <- [
          [cmd: ["x"], ready: {:tcp, 1}],
          [cmd: ["x"], port: 70_000],
          [cmd: ["x"], client: NoSuchModule],
          [cmd: ["x"], address: "nowhere"],
          [cmd: ["x"], no_such: 1],
          []
        ],
        do: assert_raise(ArgumentError, fn -> GRPCWorker.start_link(opts) end)
  end

  defp speak_http1(listener) do
    with {:ok, socket} <- :gen_tcp.accept(listener) do
      :gen_tcp.send(socket, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
      :gen_tcp.recv(socket, 0)
      speak_http1(listener)
    end
  end
end
