defmodule Snakepit.StreamInputTest do
  # What a stream is given, and how it passes. Descriptors and processes of this BEAM are counted, so nothing else may
  # have any.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Family, Hole, Leftovers}

  @chunk 65_536

  setup do
    {:ok, leftovers: Leftovers.note()}
  end

  defp size(stream), do: Enum.reduce(stream, 0, &(byte_size(&1) + &2))

  # The most memory that the BEAM has had while `stream` was run, above what it had before.
  defp peak(stream, fun \\ fn _data -> :ok end) do
    :erlang.garbage_collect()
    before = :erlang.memory(:total)

    Enum.reduce(stream, {0, 0}, fn data, {size, peak} ->
      fun.(data)
      {size + byte_size(data), max(peak, :erlang.memory(:total) - before)}
    end)
  end

  describe "memory" do
    test "does not grow with the output, also if the reader is slow" do
      pause = fn _data ->
        if :rand.uniform(50) == 1, do: receive(do: (:x -> :x), after: (1 -> 1))
      end

      stream = Snakepit.stream!(["head", "-c", "256M", "/dev/zero"])
      assert {268_435_456, peak} = peak(stream, pause)
      assert peak < 8_000_000
    end

    @tag :long
    @tag timeout: 300_000
    test "does not grow with 1 GiB of output" do
      assert {1_073_741_824, peak} = peak(Snakepit.stream!(["head", "-c", "1G", "/dev/zero"]))
      assert peak < 8_000_000
    end

    @tag :long
    @tag timeout: 600_000
    test "does not grow with 1 GiB that goes through gzip and back" do
      chunk = :crypto.strong_rand_bytes(8_192) <> :binary.copy("x", @chunk - 8_192)
      count = div(1_073_741_824, @chunk)
      input = Stream.repeatedly(fn -> chunk end) |> Stream.take(count)
      zipped = Snakepit.stream!(["gzip", "-1"], input: input)
      {:ok, agent} = Agent.start_link(fn -> :erlang.crc32("") end)
      sum = fn data -> Agent.update(agent, &:erlang.crc32(&1, data)) end
      assert {1_073_741_824, peak} = peak(Snakepit.stream!(["gzip", "-d"], input: zipped), sum)
      assert peak < 16_000_000
      crc = Enum.reduce(1..count, :erlang.crc32(""), fn _, crc -> :erlang.crc32(crc, chunk) end)
      assert Agent.get(agent, & &1) == crc
    end
  end

  describe "input" do
    test "is any enumerable of iodata, and none of it is read before it is wanted" do
      assert Snakepit.stream!(["cat"], input: 1..3 |> Stream.map(&[?a, "#{&1}"])) |> Enum.join() ==
               "a1a2a3"

      assert Snakepit.stream!(["cat"], input: MapSet.new(["x"])) |> Enum.join() == "x"
      assert Snakepit.stream!(["cat"], input: fn acc, fun -> Enum.reduce(["f"], acc, fun) end)
      assert Snakepit.cmd("cat", [], input: Stream.take(["a", "", "b"], 3)) == {"ab", 0}

      for input <- [:x, 1, [:x], fn -> "x" end, {"x"}] do
        assert_raise ArgumentError, ~r/:input/, fn -> Snakepit.stream!(["cat"], input: input) end
      end

      # A program that does not read is given no more than fits into the pipe, and one piece waits.
      {:ok, asked} = Agent.start_link(fn -> 0 end)

      input =
        Stream.repeatedly(fn ->
          Agent.update(asked, &(&1 + 1))
          :binary.copy("x", @chunk)
        end)

      stream = Snakepit.stream!(["sh", "-c", "echo go; exec sleep 600"], input: input)
      count = fn _go -> standstill(fn -> Agent.get(asked, & &1) end) end
      assert stream |> Stream.map(count) |> Enum.take(1) == [2]
    end

    test "and output go on at the same time, however large they are" do
      chunk = :binary.copy("0123456789abcdef", 4_096)
      input = Stream.take(Stream.repeatedly(fn -> chunk end), 500)
      assert Snakepit.stream!(["cat"], input: input) |> size() == 500 * @chunk
      # All of the output comes before the input is read.
      script = "yes | head -c 1000000; exec cat"

      assert Snakepit.stream!(["sh", "-c", script], input: input) |> size() ==
               1_000_000 + 500 * @chunk
    end

    test "of every byte value in pieces of any size comes back, and so do both streams" do
      :rand.seed(:exsss, {4, 5, 6})
      all = for byte <- 0..255, into: <<>>, do: <<byte>>
      input = :binary.copy(all, 4_000)

      pieces =
        Stream.unfold(input, fn
          "" ->
            nil

          rest ->
            size = min(:rand.uniform(50_000), byte_size(rest))
            {binary_part(rest, 0, size), binary_part(rest, size, byte_size(rest) - size)}
        end)

      assert Snakepit.stream!(["cat"], input: pieces) |> Enum.join() == input

      both =
        Snakepit.stream!(["tee", "/dev/stderr"], input: pieces, stderr: :capture)
        |> Enum.to_list()

      for name <- [:stdout, :stderr] do
        assert Enum.join(for {^name, data} <- both, do: data) == input
      end
    end

    test "that fails, fails the stream with the same error and its stack", %{leftovers: before} do
      token = Family.token()
      failing = fn fail -> Stream.map(1..3, fn n -> if n == 3, do: fail.(), else: "#{n}" end) end

      # Some wait for the end of the input, some always have output, and some have closed it.
      for script <- ["cat; sleep #{token}", "yes", "exec >&-; sleep #{token}"],
          stream <- [&Snakepit.stream!/2, &Snakepit.stream/2, &cmd/2] do
        call = fn fail ->
          # So slowly that there is always more output by then.
          ["sh", "-c", script]
          |> stream.(input: failing.(fail))
          |> Enum.into(%Hole{pause_ms: 5})
        end

        try do
          call.(fn -> raise KeyError, key: :missing end)
          flunk("did not fail")
        rescue
          error in KeyError ->
            assert error.key == :missing
            assert Enum.any?(__STACKTRACE__, &match?({__MODULE__, _, _, _}, &1))
        end

        assert catch_throw(call.(fn -> throw(:thrown) end)) == :thrown
        assert catch_exit(call.(fn -> exit(:gone) end)) == :gone

        linked = fn ->
          spawn_link(fn -> exit(:linked) end)
          receive(do: (:never -> ""))
        end

        assert catch_exit(call.(linked)) == :linked
        assert_raise ArgumentError, ~r/iodata, got: :no_data/, fn -> call.(fn -> :no_data end) end
      end

      assert Family.members(token) == []
      Leftovers.assert_none(before)
    end

    test "that fails does not look complete to the program" do
      path = temporary_path("copy")
      script = "cat > #{path}; echo complete >> #{path}"
      input = Stream.map(1..2, fn n -> if n == 2, do: raise("no more"), else: "begun\n" end)

      for _ <- 1..5 do
        assert_raise RuntimeError, fn -> Snakepit.cmd("sh", ["-c", script], input: input) end
        refute File.exists?(path) and File.read!(path) =~ "complete"
      end
    end

    test "that a program does not want is asked for no more, and ends in order" do
      test = self()
      large = :binary.copy("x", 1_000_000)
      input = Stream.resource(fn -> 0 end, &{[large], &1 + 1}, &send(test, {:asked, &1}))

      for run <- [
            &Snakepit.stream!(["head", "-c", "1"], input: &1),
            &Snakepit.stream!(["yes"], input: &1)
          ] do
        assert [_one] = run.(input) |> Enum.take(1)
        assert_received {:asked, 1}
      end
    end

    test "that is not all read is told by stream/2, unless there is more to tell" do
      large = :binary.copy("x", 1_000_000)

      last = fn argv, input ->
        Snakepit.stream(argv, input: input) |> Enum.to_list() |> List.last()
      end

      assert last.(["head", "-c", "1"], large) == {:exit, :epipe}
      assert last.(["head", "-c", "1"], Stream.cycle([large])) == {:exit, :epipe}
      assert last.(["sh", "-c", "exit 3"], large) == {:exit, {:status, 3}}
      assert last.(["sh", "-c", "kill -TERM $$"], large) == {:exit, {:signal, :sigterm}}
      assert last.(["cat"], large) == {:exit, {:status, 0}}
      assert last.(["cat"], Stream.take([large, large], 2)) == {:exit, {:status, 0}}
      # What it would have been is not known, and it was not wanted.
      never = Stream.repeatedly(fn -> receive(do: (:never -> "")) end)
      assert last.(["true"], never) == {:exit, :epipe}
      # What it does when it is not wanted any more is nobody's business.
      greedy = Stream.repeatedly(fn -> receive(do: (_anything -> raise "not this")) end)
      assert last.(["true"], greedy) == {:exit, :epipe}
      # For stream!/2, a program knows what it needs.
      assert Snakepit.stream!(["head", "-c", "1"], input: large) |> Enum.to_list() == ["x"]
    end

    test "is told who wants it, as a task would be" do
      input = Stream.map([1], fn _ -> inspect(Process.get(:"$callers")) end)
      assert Snakepit.cmd("cat", [], input: input) == {inspect([self()]), 0}
    end
  end

  describe "programs in a chain" do
    test "are a pipeline" do
      path = temporary_path("words")
      File.write!(path, "b\na\nb\n")
      sorted = Snakepit.stream!(["sort"], input: Snakepit.stream!(["cat", path]))

      assert Snakepit.stream!(["uniq", "-c"], input: sorted) |> Enum.join() =~
               ~r/\A +1 a\n +2 b\n\z/
    end

    test "end when the last one is abandoned, or has had enough", %{leftovers: before} do
      token = Family.token()
      first = Snakepit.stream!(["sh", "-c", "yes; sleep #{token}"])
      second = Snakepit.stream!(["sh", "-c", "cat; :", token], input: first)

      assert [_chunk] =
               Snakepit.stream!(["sh", "-c", "cat; :", token], input: second) |> Enum.take(1)

      eventually(fn -> Family.members(token) == [] end)
      assert Snakepit.stream!(["head", "-n", "1"], input: second) |> Enum.to_list() == ["y\n"]
      eventually(fn -> Family.members(token) == [] end)

      # One that has nothing to say does not notice.
      silent = Snakepit.stream!(["sleep", token])

      assert Snakepit.stream!(["sh", "-c", "echo x; cat"], input: silent) |> Enum.take(1) == [
               "x\n"
             ]

      eventually(fn -> Family.members(token) == [] end)
      Leftovers.assert_none(before)
    end

    test "fail together", %{leftovers: before} do
      failing = Snakepit.stream!(["sh", "-c", "echo x; exit 3"])

      error =
        assert_raise Error, fn -> Snakepit.stream!(["cat"], input: failing) |> Stream.run() end

      assert error.status == 3
      missing = Snakepit.stream!(["no-such-program-anywhere"])
      assert_raise Error, ~r/no-such/, fn -> Snakepit.cmd("cat", [], input: missing) end
      Leftovers.assert_none(before)
    end
  end

  defp cmd([program | args], opts),
    do: [Snakepit.cmd(program, args, [into: %Hole{pause_ms: 5}] ++ opts)]
end
