defmodule Snakepit.Worker.InFlightTest do
  # Many requests at a time.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  defp echoes(header, opts, arguments \\ []) do
    cmd = ["python3", fixture("echoes.py"), "#{header}" | Enum.map(arguments, &to_string/1)]
    Worker.start_link([cmd: cmd, stdio: :pipe, packet: header] ++ opts)
  end

  # Callers of their own, each of which asks several times.
  defp ask_all(worker, callers, times) do
    1..callers
    |> Task.async_stream(
      fn caller ->
        for n <- 1..times do
          packet = "#{caller}-#{n}-" <> :binary.copy("x", rem(caller * n * 37, 200))
          Worker.request(worker, packet, 20_000) == {:ok, packet}
        end
      end,
      max_concurrency: callers,
      timeout: 60_000
    )
    |> Enum.flat_map(fn {:ok, own} -> own end)
    |> Enum.uniq()
  end

  test "answers in order" do
    for header <- [1, 2, 4], in_flight <- [1, 16] do
      {:ok, worker} = echoes(header, in_flight: in_flight)
      assert ask_all(worker, 40, 10) == [true]
      assert Insides.in_flight(worker) == 0
      assert Worker.stop(worker) == :ok
    end

    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line, in_flight: 8)

    lines =
      Task.async_stream(1..100, &{&1, Worker.request(worker, "#{&1}\n")}, max_concurrency: 20)

    for {:ok, {n, answer}} <- lines, do: assert(answer == {:ok, "#{n}\n"})
  end

  test "so many are with the process at a time" do
    {:ok, worker} =
      Worker.start_link(cmd: ["sleep", "600"], stdio: :pipe, packet: 4, in_flight: 3)

    requests = for n <- 1..5, do: Task.async(fn -> Worker.request(worker, "#{n}", 20_000) end)

    eventually(fn -> Insides.requests(worker) == 5 end)

    assert Insides.in_flight(worker) == 3
    assert Worker.stop(worker) == :ok

    for answer <- Task.await_many(requests),
        do: assert({:error, %Error{reason: :worker_down}} = answer)
  end

  test "one request after the other does not fill the worker's mailbox" do
    {:ok, worker} = echoes(4, [])
    began = System.monotonic_time(:millisecond)
    :erlang.trace(worker, true, [:receive])
    for n <- 1..500, do: assert(Worker.request(worker, "#{n}", 20_000) == {:ok, "#{n}"})
    :erlang.trace(worker, false, [:receive])
    took_ms = System.monotonic_time(:millisecond) - began
    {:messages, messages} = Process.info(self(), :messages)
    moments = for {:trace, ^worker, :receive, {Snakepit.Pipe, :moment_over, _}} <- messages, do: 1

    # They come one after the other, a millisecond each, however many requests there are meanwhile.
    assert length(moments) <= took_ms + 1
  end

  test "answers in any order, by tag" do
    for bytes <- [1, 2, 8] do
      {:ok, worker} = echoes(4, [in_flight: 16, tag: {:bytes, bytes}], [bytes, 8])
      # It answers eight at a time, the last one first: fewer would wait.
      for _ <- 1..20, do: assert(ask_all(worker, 8, 1) == [true])
      assert Worker.stop(worker) == :ok
    end
  end

  test "each has its own time, and a late answer is nobody's" do
    options = [in_flight: 4, tag: {:bytes, 2}]
    {:ok, worker} = echoes(4, options, [2, 3])
    # Three are answered together, so these two wait for a third.
    late = Task.async(fn -> Worker.request(worker, "late", 50) end)
    eventually(fn -> Insides.in_flight(worker) == 1 end)
    own = Task.async(fn -> Worker.request(worker, "own", 20_000) end)
    assert {:error, %Error{reason: :timeout}} = Task.await(late)
    eventually(fn -> Insides.in_flight(worker) == 2 end)
    assert Worker.request(worker, "third", 20_000) == {:ok, "third"}
    assert Task.await(own) == {:ok, "own"}
    assert Insides.in_flight(worker) == 0
    refute_received {_alias, {:ok, _answer}}
  end

  test "the time of one runs out, also if one with less time was asked and answered meanwhile" do
    options = [in_flight: 4, tag: {:bytes, 2}, answer_timeout: 2_000]
    {:ok, worker} = echoes(4, options, [2])
    lost = Task.async(fn -> Worker.request(worker, "lost", 1_000) end)
    eventually(fn -> Insides.in_flight(worker) == 1 end)
    # Its time is noted before that of the other, whether it is answered within it or not.
    Worker.request(worker, "soon", 100)
    capture_log(fn -> assert_receive {:EXIT, ^worker, :unanswered}, 20_000 end)
    assert {:error, %Error{reason: :timeout}} = Task.await(lost)
  end

  test "in order, the place of a late one stays taken until its answer has come" do
    go = temporary_path("go")
    script = "read a; until [ -e '#{go}' ]; do sleep 0.01; done; echo $a; exec cat"
    {:ok, worker} = Worker.start_link(cmd: sh(script), stdio: :pipe, packet: :line, in_flight: 2)
    assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "late\n", 50)
    others = for n <- 1..3, do: Task.async(fn -> Worker.request(worker, "#{n}\n", 20_000) end)
    eventually(fn -> Insides.in_flight(worker) == 2 end)
    File.write!(go, "")
    assert Task.await_many(others, 20_000) == for(n <- 1..3, do: {:ok, "#{n}\n"})
  end

  test "an answer that never comes ends the worker, whatever the others do" do
    for {options, arguments} <- [{[], []}, {[tag: {:bytes, 2}], [2]}] do
      {:ok, worker} = echoes(4, [in_flight: 4, answer_timeout: 2_000] ++ options, arguments)
      assert Worker.request(worker, "first", 20_000) == {:ok, "first"}
      assert {:error, %Error{reason: :timeout}} = Worker.request(worker, "lost", 50)
      if options != [], do: assert(Worker.request(worker, "other", 20_000) == {:ok, "other"})
      capture_log(fn -> assert_receive {:EXIT, ^worker, :unanswered}, 20_000 end)
    end
  end

  test "a tag that nobody has is a fault, unless somebody hears such packets" do
    {:ok, worker} = echoes(4, [in_flight: 4, tag: {:bytes, 2}], [2])

    capture_log(fn ->
      assert Worker.request(worker, "twice", 20_000) == {:ok, "twice"}
      assert_receive {:EXIT, ^worker, :unexpected_output}, 20_000
    end)

    options = [in_flight: 4, tag: {:bytes, 2}, output: {:send, self()}, id: "heard"]
    {:ok, worker} = echoes(4, options, [2])
    assert Worker.request(worker, "twice", 20_000) == {:ok, "twice"}
    assert_receive {Worker, "heard", {:output, <<_tag::16, "twice">>}}, 20_000
    assert Worker.request(worker, "next", 20_000) == {:ok, "next"}
  end

  test "a caller that is killed, however long it wanted to wait, leaves nobody's answer to another" do
    for {options, arguments} <- [{[], []}, {[tag: {:bytes, 1}], [1]}] do
      {:ok, worker} = echoes(4, [in_flight: 2, answer_timeout: 2_000] ++ options, arguments)
      assert Worker.request(worker, "first", 20_000) == {:ok, "first"}

      for timeout <- [:infinity, 60_000], _ <- 1..20 do
        caller = spawn(fn -> Worker.request(worker, "killed", timeout) end)
        Process.exit(caller, :kill)
        assert Worker.request(worker, "own", 20_000) == {:ok, "own"}
      end

      # Of one that would have waited for ever: it ends the worker as any other that is not answered.
      caller = spawn(fn -> Worker.request(worker, "lost", :infinity) end)
      eventually(fn -> Insides.in_flight(worker) == 1 end)
      Process.exit(caller, :kill)
      capture_log(fn -> assert_receive {:EXIT, ^worker, :unanswered}, 20_000 end)
    end
  end

  test "a request that is too long with its tag is refused, and the others go on" do
    {:ok, worker} = echoes(1, [in_flight: 2, tag: {:bytes, 2}], [2])
    fits = :binary.copy("x", 253)
    assert {:error, %Error{reason: :emsgsize}} = Worker.request(worker, fits <> "x")
    assert Worker.request(worker, fits, 20_000) == {:ok, fits}
    assert {:error, %Error{reason: :einval} = error} = Worker.write(worker, "x")
    assert Exception.message(error) =~ ":tag"
  end

  test "much more than a pipe holds, in flight both ways" do
    {:ok, worker} = echoes(4, [in_flight: 16, tag: {:bytes, 2}], [2])
    data = for n <- 1..32, do: :binary.copy(<<n>>, 100_000 + n)

    data
    |> Task.async_stream(&(Worker.request(worker, &1, 60_000) == {:ok, &1}),
      max_concurrency: 32,
      timeout: 60_000
    )
    |> Enum.each(fn {:ok, own?} -> assert own? end)
  end

  test "workers of a pool have many requests each" do
    worker = [
      cmd: ["python3", fixture("echoes.py"), "4", "2", "1"],
      stdio: :pipe,
      packet: 4,
      in_flight: 8,
      tag: {:bytes, 2}
    ]

    pool = start_supervised!({Snakepit.Pool, size: 2, worker: worker})

    answers =
      Task.async_stream(
        1..8,
        fn caller ->
          Snakepit.Pool.with_worker(
            pool,
            fn worker ->
              1..20
              |> Task.async_stream(
                &(Worker.request(worker, "#{caller}-#{&1}") == {:ok, "#{caller}-#{&1}"})
              )
              |> Enum.map(fn {:ok, own?} -> own? end)
            end,
            timeout: 60_000
          )
        end,
        timeout: 60_000
      )

    for {:ok, own} <- answers, do: assert(Enum.uniq(own) == [true])
  end

  test "options that do not go together are refused" do
    for {options, key} <- [
          {[in_flight: 2], ":in_flight"},
          {[in_flight: 2, packet: :raw], ":in_flight"},
          {[in_flight: 0, packet: 4], ":in_flight"},
          {[tag: {:bytes, 2}, packet: :line], ":tag"},
          {[tag: {:bytes, 9}, packet: 4], ":tag"},
          {[tag: {:bytes, 1}, in_flight: 257, packet: 4], ":in_flight"},
          {[active: :once], ":active"},
          {[active: 0, output: {:send, self()}], ":active"},
          {[output: :read, ready: {:output, "x"}], ":ready"},
          {[stderr: :file], ":stderr"}
        ] do
      error =
        assert_raise ArgumentError, fn ->
          Worker.start_link([cmd: ["cat"], stdio: :pipe] ++ options)
        end

      assert error.message =~ key
    end

    error =
      assert_raise ArgumentError, fn ->
        Worker.start_link(cmd: ["cat"], stdio: :null, stderr: :read)
      end

    assert error.message =~ ":stderr"
  end
end
