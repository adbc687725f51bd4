defmodule Snakepit.Output.LogTest do
  # What is logged is captured, from whichever process.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog
  import Snakepit.Test.Eventually

  alias Snakepit.Output.Log

  doctest Log

  defp new(opts \\ []), do: Log.new!("worker-1", opts)

  # The messages alone.
  defp logged(fun, format \\ "$message\n"),
    do:
      [format: format, colors: [enabled: false]]
      |> capture_log(fun)
      |> String.split("\n", trim: true)

  test "an entry per line, in whatever pieces the lines come, and a last one without a newline" do
    assert logged(fn ->
             log = new()
             log = Enum.reduce(["on", "e\ntwo\nth", "ree"], log, &Log.put(&2, &1))
             Log.close(log)
           end) == ["worker-1: one", "worker-1: two", "worker-1: three"]
  end

  test "level, prefix and metadata are what was asked for" do
    log = new(level: :warning, prefix: "[db] ", metadata: [request_id: "r1"])

    capture = [
      format: "$level|$metadata|$message\n",
      metadata: [:request_id],
      colors: [enabled: false]
    ]

    assert capture_log(capture, fn -> Log.put(log, "line\n") end) =~
             ~r/warn(ing)?\|request_id=r1 \|\[db\] line\n/

    assert logged(fn -> Log.put(new(prefix: ""), "line\n") end) == ["line"]
  end

  test "bytes that are no text are shown, and text around them stays" do
    assert logged(fn -> Log.put(new(), <<"a", 0xFF, "é", 0xC3, "\n", 0, "\n">>) end) ==
             ["worker-1: a\\xFFé\\xC3", "worker-1: \0"]

    for _ <- 1..1000 do
      line = :crypto.strong_rand_bytes(20)
      text = Log.text(line)
      assert String.valid?(text)
      # Nothing but white space at its end is lost.
      assert byte_size(text) >= line |> String.trim_trailing() |> byte_size()
    end
  end

  describe "a transform function" do
    test "changes lines, and drops them" do
      log = new(transform: fn line -> if line != "secret", do: String.upcase(line) end)

      assert logged(fn -> Log.put(log, "one\nsecret\ntwo\n") end) == [
               "worker-1: ONE",
               "worker-1: TWO"
             ]
    end

    test "that fails lets the line through, and is told of once" do
      for {fail, why} <- [
            {fn -> raise "no such line" end, "(RuntimeError) no such line"},
            {fn -> throw(:ball) end, "(throw) :ball"},
            {fn -> exit(:gone) end, "(exit) :gone"},
            {fn -> 42 end, "returned 42"}
          ] do
        log = new(transform: fn line -> if line == "bad", do: fail.(), else: "> " <> line end)

        assert [told | lines] =
                 logged(fn -> Log.put(log, "bad\nbad\ngood\n") end)
                 |> Enum.filter(&(&1 =~ "worker-1"))

        assert told =~ why
        assert told =~ "the :transform of its output has failed"
        assert lines == ["worker-1: bad", "worker-1: bad", "worker-1: > good"]
      end
    end

    test "that drops lines does not use up the limit" do
      log = new(max_per_second: 2, transform: fn line -> if line != "no", do: line end)
      lines = String.duplicate("no\n", 100) <> "one\ntwo\nthree\n"
      logged = logged(fn -> Log.close(Log.put(log, lines)) end)
      assert ["worker-1: one", "worker-1: two", "worker-1: 1 lines were left out" <> _] = logged
    end
  end

  describe "a flood" do
    test "is cut off at the limit of each second, and counted" do
      log = new(max_per_second: 3)

      logged =
        logged(fn ->
          log = Enum.reduce(1..10, log, &Log.line(&2, "first #{&1}", 0))
          log = Enum.reduce(1..2, log, &Log.line(&2, "second #{&1}", 1_000))
          Log.close(log)
        end)

      assert Enum.filter(logged, &(&1 =~ "first")) == for(n <- 1..3, do: "worker-1: first #{n}")

      assert Enum.filter(logged, &(&1 =~ ~r/second \d/)) ==
               for(n <- 1..2, do: "worker-1: second #{n}")

      assert [told] = Enum.filter(logged, &(&1 =~ "left out"))
      assert told == "worker-1: 7 lines were left out: more than 3 in a second"
    end

    test "is told of when its second is over, although nothing follows" do
      log =
        capture_log(fn ->
          before = tellers()
          log = Log.put(new(max_per_second: 1), "one\ntwo\nthree\n")
          # It is one of those only when it has begun to run.
          [teller] = eventually(fn -> with [] <- tellers() -- before, do: nil end)
          monitor = Process.monitor(teller)
          assert_receive {:DOWN, ^monitor, :process, ^teller, _normal}
          # It has told all.
          Log.close(log)
        end)

      assert log =~ "worker-1: 2 lines were left out: more than 1 in a second"
      assert length(String.split(log, "left out")) == 2
    end

    # Those that wait for the end of a second.
    defp tellers do
      for pid <- Process.list(),
          {:current_function, {Log, function, _arity}} <- [Process.info(pid, :current_function)],
          Atom.to_string(function) =~ "tell_later",
          do: pid
    end

    test "has no limit if none is wanted" do
      lines = String.duplicate("line\n", 5_000)
      logged = logged(fn -> Log.put(new(max_per_second: :infinity), lines) end)
      assert length(logged) == 5_000
    end
  end

  test "options that are none are refused" do
    for opts <- [
          [level: :loud],
          [prefix: 1],
          [metadata: 1],
          [max_per_second: 0],
          [transform: 1],
          [colour: 1]
        ] do
      assert_raise ArgumentError, ~r/^:output: /, fn -> new(opts) end
    end
  end
end
