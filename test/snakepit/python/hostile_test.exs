defmodule Snakepit.Python.HostileTest do
  # Workers that say what they should not, and calls in the middle of everything that can happen to a worker.
  use Snakepit.Test.WorkerCase

  import ExUnit.CaptureLog
  import Snakepit.Test.Python

  alias Snakepit.Python

  # Writes to the pipe behind the bridge's back.
  @init """
  import os, signal, time
  import snakepit_bridge.calls as calls
  def packet(payload):
      os.write(calls.channel._writer, len(payload).to_bytes(4, "big") + payload)
  def answer(payload):
      packet(calls.channel.running + payload)
      time.sleep(600)
  def raw(data):
      os.write(calls.channel._writer, data)
      os._exit(0)
  """

  @answers [
    {"no kind of answer", "?"},
    {"nothing", ""},
    {"no MessagePack", <<"R", 0xC1>>},
    {"a value that is cut", <<"R", 0x92, 1>>},
    {"a value with something behind it", <<"R", 1, 2>>},
    {"a list of four thousand million", <<"R", 0xDD, 0xFFFFFFFF::32>>},
    {"text that is none", <<"R", 0xA1, 0xFF>>},
    {"an exception that is none", <<"X", 0xC0>>},
    {"a memory file that is none", <<"R", 0xD8, 8, 1::32, 0::32, 1_000_000::64>>},
    {"depth", "R" <> String.duplicate(<<0x91>>, 100_000) <> <<1>>}
  ]

  for {what, answer} <- @answers do
    test "an answer of #{what} is an error, and costs the worker" do
      python = python!(init: @init)
      [os_pid] = os_pids(python)

      capture_log(fn ->
        assert {:error, %Error{} = error} =
                 Python.call(python, "answer", [Python.bytes(unquote(answer))], timeout: 20_000)

        assert Exception.message(error) =~ "answer"
        assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      end)

      refute os_pids(python) == [os_pid]
    end
  end

  for {what, packet} <- [
        {"a call that nobody made", <<12_345::56, "R", 1>>},
        {"nobody", <<1, 2, 3>>},
        {"an unknown purpose", <<0xFFFFFFFFFFFFFF::56, "?", 1>>},
        {"a callback that is none", <<0xFFFFFFFFFFFFFF::56, "c", 0xC0>>},
        {"a stream that nobody reads", <<0xFFFFFFFFFFFFFF::56, "i", 7::64, 1>>}
      ] do
    test "a packet for #{what} is never taken for an answer" do
      python = python!(init: @init)

      log =
        capture_log(fn ->
          answers =
            for n <- 1..5,
                do:
                  Python.call(python, "packet", [Python.bytes(unquote(packet))],
                    kwargs: [],
                    timeout: 60_000 + n
                  )

          for answer <- answers,
              do: assert(inspect(answer) =~ ~r/^{:ok, nil}|^{:error, #Snakepit.Error/)

          assert eventually(fn ->
                   Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
                 end)
        end)

      if unquote(what) == "a stream that nobody reads",
        do: assert(log == ""),
        else: assert(log != "")
    end
  end

  test "packets that are cut or too long end the worker, not the caller" do
    python = python!(init: @init)

    for data <- [<<0, 0>>, <<0, 0, 1, 0, "cut">>, <<0xFFFFFFFF::32, "much">>] do
      capture_log(fn ->
        assert {:error, %Error{reason: :worker_down}} =
                 Python.call(python, "raw", [Python.bytes(data)], timeout: 60_000)

        assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      end)
    end
  end

  test "signals during calls change nothing" do
    init =
      "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\ndef count(n):\n    return sum(range(n))"

    python = python!(init: init)
    [os_pid] = os_pids(python)

    storm =
      spawn_link(fn ->
        fn ->
          System.cmd(
            "sh",
            ["-c", "kill -URG #{os_pid}; kill -USR1 #{os_pid}; kill -WINCH #{os_pid}"],
            stderr_to_stdout: true
          )
        end
        |> Stream.repeatedly()
        |> Stream.run()
      end)

    for n <- 1..200,
        do:
          assert(
            Python.call!(python, "count", [n * 500], timeout: 60_000) ==
              div(n * 500 * (n * 500 - 1), 2)
          )

    assert python |> Python.stream("range", [2000], timeout: 60_000) |> Enum.sum() == 1_999_000
    Process.unlink(storm)
    Process.exit(storm, :kill)
    assert os_pids(python) == [os_pid]
  end

  @tag :long
  @tag timeout: 600_000
  test "ten thousand calls of a thousand processes: each has its own answer or a clear error" do
    init = """
    import os, signal, time
    leaked = []
    def echo(x):
        return x
    def bad(kind, x):
        if kind == 0: raise ValueError(str(x))
        if kind == 1: time.sleep(600)
        if kind == 2: os.kill(os.getpid(), signal.SIGKILL)
        if kind == 3: leaked.append(bytearray(20_000_000))
        if kind == 4: print("x" * 200_000)
        if kind == 5: return "y" * 300_000
        return x
    """

    python =
      python!(
        size: 8,
        init: init,
        max_memory: 200_000_000,
        memory_interval: 500,
        max_restarts: 1_000_000,
        interrupt_timeout: 5_000
      )

    long = String.duplicate("y", 300_000)

    capture_log(fn ->
      results =
        1..1000
        |> Task.async_stream(
          fn caller ->
            for n <- 1..10 do
              id = caller * 100 + n

              case rem(id * 7919, 499) do
                kind when kind in 0..5 ->
                  timeout = if kind == 1, do: 50, else: 300_000
                  {kind, id, Python.call(python, "bad", [kind, id], timeout: timeout)}

                _ ->
                  {:echo, id, Python.call(python, "echo", [id], timeout: 300_000)}
              end
            end
          end,
          max_concurrency: 1000,
          timeout: :infinity
        )
        |> Enum.flat_map(fn {:ok, results} -> results end)

      assert length(results) == 10_000

      for {kind, id, result} <- results do
        text = to_string(id)

        case {kind, result} do
          {kind, {:ok, ^id}} when kind in [:echo, 3, 4] ->
            :ok

          {5, {:ok, ^long}} ->
            :ok

          {0, {:error, %Python.Error{type: "ValueError", message: ^text}}} ->
            :ok

          {1, {:error, %Error{reason: :timeout}}} ->
            :ok

          {2, {:error, %Error{reason: :worker_down}}} ->
            :ok

          # Another worker's memory, or its end, is no reason for it, but the exchange of its own may be.
          {_any, {:error, %Error{reason: reason}}} when reason in [:worker_down, :timeout] ->
            :told

          other ->
            flunk("#{inspect(other, limit: 5, printable_limit: 100)} for #{id}")
        end
      end

      told =
        Enum.count(results, fn {kind, _id, result} ->
          kind not in [1, 2] and match?({:error, %Error{}}, result)
        end)

      # Those who were not asked for anything bad have their answers.
      assert told < 100
      assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
    end)
  end
end
