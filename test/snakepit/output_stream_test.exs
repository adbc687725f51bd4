defmodule Snakepit.OutputStreamTest do
  # Descriptors and processes of this BEAM are counted, so nothing else may have any.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Family, Leftovers}

  setup do
    {:ok, leftovers: Leftovers.note()}
  end

  describe "standard error" do
    test "is tagged, and lines of each stream are cut by themselves" do
      steps = ["printf a", "printf x >&2", "echo b", "echo y >&2", "printf c", "printf z >&2"]
      # Each piece is read by itself.
      script = Enum.join(steps, "; sleep 0.1; ")

      for stream <- [&Snakepit.stream!/2, &Snakepit.stream/2] do
        elements = stream.(["sh", "-c", script], stderr: :capture, packet: :line)
        elements = for {name, data} <- elements, name != :exit, do: {name, data}
        assert Enum.sort(elements) == [stderr: "xy\n", stderr: "z", stdout: "ab\n", stdout: "c"]
      end
    end

    test "leads where it is told to" do
      argv = ["sh", "-c", "echo out; echo err >&2"]
      assert Snakepit.stream!(argv, stderr: :merge) |> Enum.join() == "out\nerr\n"

      for mode <- [:null, :tail],
          do: assert(Snakepit.stream!(argv, stderr: mode) |> Enum.join() == "out\n")

      assert_raise ArgumentError, ~r/:stderr/, fn -> Snakepit.stream!(argv, stderr: :consume) end
    end

    test "says why, also if it was captured" do
      for mode <- [:tail, :capture] do
        stream = Snakepit.stream!(["sh", "-c", "echo why >&2; exit 3"], stderr: mode)
        error = assert_raise Error, fn -> Stream.run(stream) end
        assert %{reason: :exit_status, status: 3, output: "why\n"} = error
      end
    end

    test "of one that floods both streams is read in turns" do
      stream = Snakepit.stream!(["sh", "-c", "yes & yes >&2"], stderr: :capture)

      # So slowly that both always have something.
      slowly = fn {name, _data} ->
        receive(do: (:never -> name), after: (2 -> name))
      end

      names = stream |> Stream.map(slowly) |> Enum.take(200) |> Enum.frequencies()
      assert names.stdout in 50..150
    end

    test "of one that floods both streams leaves no messages, however fast it is read" do
      stream = Snakepit.stream!(["sh", "-c", "yes & yes >&2"], stderr: :capture)
      queued = fn _data -> elem(Process.info(self(), :message_queue_len), 1) end
      assert stream |> Stream.map(queued) |> Enum.take(2_000) |> Enum.max() <= 4
    end
  end

  describe "stream/2" do
    test "tells at its end how the program has ended" do
      list = fn argv, opts -> Snakepit.stream(argv, opts) |> Enum.to_list() end
      assert list.(["echo", "x"], []) == ["x\n", {:exit, {:status, 0}}]
      assert list.(["sh", "-c", "exit 200"], []) == [{:exit, {:status, 200}}]
      assert list.(["sh", "-c", "kill -KILL $$"], []) == [{:exit, {:signal, :sigkill}}]

      assert [{:exit, {:error, %Error{reason: :enoent}}}] =
               list.(["no-such-program-anywhere"], [])

      assert_raise ArgumentError, fn -> Snakepit.stream(["true"], success: [0]) end
      assert_raise ArgumentError, fn -> Snakepit.stream("true") end
    end

    test "tells of limits, and nothing is left then", %{leftovers: before} do
      token = Family.token()
      argv = ["sh", "-c", "printf '1\n22\n333\n'; exec sleep #{token}"]

      for {opts, reason, lines} <- [
            {[timeout: 1_000], :timeout, ["1\n", "22\n", "333\n"]},
            {[idle_timeout: 1_000], :idle_timeout, ["1\n", "22\n", "333\n"]},
            {[max_packet: 3], :max_packet, ["1\n", "22\n"]}
          ] do
        assert {^lines, [{:exit, {:error, %Error{reason: ^reason}}}]} =
                 Snakepit.stream(argv, [packet: :line] ++ opts)
                 |> Stream.each(&(is_tuple(&1) && assert(Family.members(token) == [])))
                 |> Enum.split(length(lines))

        error =
          assert_raise Error, fn ->
            Snakepit.stream!(argv, [packet: :line] ++ opts) |> Stream.run()
          end

        assert error.reason == reason
      end

      Leftovers.assert_none(before)
    end

    test "of statuses that stream!/2 takes for success" do
      assert Snakepit.stream!(["sh", "-c", "exit 3"], success: 0..3) |> Enum.to_list() == []

      assert_raise Error, ~r/status 0/, fn ->
        Snakepit.stream!(["true"], success: [1]) |> Stream.run()
      end

      killed = Snakepit.stream!(["sh", "-c", "kill -KILL $$"], success: 0..255)
      assert_raise Error, ~r/sigkill/, fn -> Stream.run(killed) end
    end
  end

  describe "the process that runs it" do
    test "may run it twice, and two at once", %{leftovers: before} do
      stream = Snakepit.stream!(["seq", "3"], packet: :line, input: ["x"])
      assert Enum.to_list(stream) == Enum.to_list(stream)

      assert Stream.zip(stream, stream) |> Enum.to_list() ==
               for(n <- 1..3, do: {"#{n}\n", "#{n}\n"})

      endless = Snakepit.stream!(["yes"], packet: :line)
      assert Stream.zip([endless, stream, endless]) |> Enum.to_list() |> length() == 3
      Leftovers.assert_none(before)
    end

    test "need not be the one that has made it" do
      stream = Snakepit.stream!(["cat"], input: ["x"])
      assert Task.async(fn -> Enum.to_list(stream) end) |> Task.await(20_000) == ["x"]
    end

    test "is the only one that can go on with it" do
      token = Family.token()
      stream = Snakepit.stream!(["sh", "-c", "echo 1; exec sleep #{token}"])

      {:suspended, ["1\n"], go_on} =
        Enumerable.reduce(stream, {:cont, []}, &{:suspend, [&1 | &2]})

      elsewhere = fn ->
        assert_raise(Error, ~r/one process/, fn -> go_on.({:cont, []}) end).reason
      end

      assert Task.async(elsewhere) |> Task.await(20_000) == :not_owner
      # And what it was is over.
      assert Family.members(token) == []
      assert catch_error(go_on.({:cont, []}))
    end

    test "may take one element, or raise", %{leftovers: before} do
      token = Family.token()
      endless = Stream.cycle([token])

      for input <- [nil, endless, :binary.copy("x", 1_000_000)], stderr <- [:tail, :capture] do
        stream =
          Snakepit.stream(["sh", "-c", "sleep #{token} & yes"], input: input, stderr: stderr)

        assert [_one] = Enum.take(stream, 1)
        assert catch_throw(Enum.each(stream, fn _ -> throw(:enough) end)) == :enough
      end

      assert Family.members(token) == []
      Leftovers.assert_none(before)
    end

    test "may be killed at any time", %{leftovers: before} do
      test = self()
      never = Stream.repeatedly(fn -> receive(do: (:never -> "")) end)
      token = Family.token()
      silent = Snakepit.stream!(["sleep", token])
      large = :binary.copy("x", 1_000_000)

      for input <- [never, Stream.cycle([large]), large, silent],
          command <- ["yes", "echo x; sleep 600"] do
        stream =
          Snakepit.stream!(["sh", "-c", "#{command}; :", token], input: input, stderr: :capture)

        reader =
          spawn(fn ->
            Enum.each(stream, fn _data ->
              send(test, {:reading, self()})
              receive(do: (:never -> :ok))
            end)
          end)

        assert_receive {:reading, ^reader}
        Process.exit(reader, :kill)
      end

      eventually(fn -> ProcScan.with_argument(token) == [] end)
      Leftovers.assert_none(before)
    end
  end
end
