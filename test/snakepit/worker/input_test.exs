defmodule Snakepit.Worker.InputTest do
  # What is written to a process.
  use Snakepit.Test.WorkerCase, async: false

  # More than a pipe holds.
  @much :binary.copy("0123456789", 100_000)

  defp starts(cmd, opts \\ []),
    do: Worker.start_link([cmd: cmd, stdio: :pipe, output: :read] ++ opts)

  # Reads its input when it is told to.
  defp reads_when(path), do: sh("until [ -e '#{path}' ]; do sleep 0.01; done; exec cat")

  defp read_all(worker, data \\ "") do
    case Worker.read(worker, :any, 20_000) do
      {:ok, more} -> read_all(worker, data <> more)
      :eof -> data
    end
  end

  test "a process that does not read: the error says how much it will have" do
    go = temporary_path("go")
    {:ok, worker} = starts(reads_when(go))
    assert {:error, %Error{} = error} = Worker.write(worker, @much, 50)
    assert %{operation: :write, reason: :timeout, written: written} = error
    assert written in 1..999_999
    assert Exception.message(error) =~ "#{written} bytes"

    # It has not come to its turn.
    assert {:error, %Error{reason: :timeout, written: 0}} = Worker.write(worker, "more", 50)
    File.write!(go, "")
    rest = binary_part(@much, written, byte_size(@much) - written)
    writer = Task.async(fn -> {Worker.write(worker, rest), Worker.close_input(worker)} end)
    assert read_all(worker) == @much
    assert Task.await(writer, 20_000) == {:ok, :ok}
  end

  test "a packet or line that was begun is written to its end, and one that was not is not written" do
    for packet <- [:line, 4] do
      go = temporary_path("go")
      {:ok, worker} = starts(reads_when(go), packet: packet)
      whole = @much <> "\n"
      assert {:error, %Error{reason: :timeout, written: begun}} = Worker.write(worker, whole, 50)
      assert begun > 0
      assert {:error, %Error{reason: :timeout, written: 0}} = Worker.write(worker, "lost\n", 50)
      File.write!(go, "")
      writer = Task.async(fn -> Worker.write(worker, "next\n", 20_000) end)
      assert Worker.read(worker, :any, 20_000) == {:ok, whole}
      assert Worker.read(worker, :any, 20_000) == {:ok, "next\n"}
      assert Task.await(writer, 20_000) == :ok
      assert Worker.stop(worker) == :ok
    end
  end

  test "a process that reads in time gets it all" do
    go = temporary_path("go")
    {:ok, worker} = starts(reads_when(go))
    writer = Task.async(fn -> Worker.write(worker, @much, 20_000) end)
    eventually(fn -> Insides.pending_writes(worker) == 1 end)
    File.write!(go, "")
    assert Worker.read(worker, byte_size(@much), 20_000) == {:ok, @much}
    assert Task.await(writer) == :ok
    assert Insides.pending_writes(worker) == 0
  end

  test "nobody reads any more" do
    {:ok, worker} = starts(sh("exec <&-; echo closed; exec sleep 600"))
    assert Worker.read(worker, :line, 20_000) == {:ok, "closed\n"}

    for data <- ["x", @much] do
      assert {:error, %Error{operation: :write, reason: :epipe}} = Worker.write(worker, data)
    end

    assert Worker.write(worker, "") == :ok
  end

  test "input ends after what was written before" do
    go = temporary_path("go")
    {:ok, worker} = starts(reads_when(go))
    writer = Task.async(fn -> Worker.write(worker, @much) end)
    eventually(fn -> Insides.pending_writes(worker) == 1 end)
    closer = Task.async(fn -> Worker.close_input(worker) end)
    eventually(fn -> Insides.pending_writes(worker) == 2 end)
    late = Task.async(fn -> Worker.write(worker, "late") end)
    eventually(fn -> Insides.pending_writes(worker) == 3 end)
    File.write!(go, "")
    assert read_all(worker) == @much
    assert Task.await(writer) == :ok
    assert Task.await(closer) == :ok
    assert {:error, %Error{reason: reason}} = Task.await(late)
    assert reason in [:closed, :epipe]
  end

  test "what is written after the end of input is an error" do
    {:ok, worker} = starts(["sleep", "600"])
    assert Worker.close_input(worker) == :ok
    assert Worker.close_input(worker) == :ok
    assert {:error, %Error{reason: :closed}} = Worker.write(worker, "x")
    assert {:error, %Error{reason: :closed}} = Worker.write(worker, @much)
  end

  test "a length that does not fit is refused, and nothing of it is written" do
    for {packet, longest} <- [{1, 255}, {2, 65_535}] do
      {:ok, worker} = starts(["cat"], packet: packet)
      fits = :binary.copy("x", longest)
      assert {:error, %Error{reason: :emsgsize} = error} = Worker.write(worker, fits <> "x")
      assert Exception.message(error) =~ "#{longest}"
      assert Worker.write(worker, fits) == :ok
      assert Worker.read(worker) == {:ok, fits}
    end
  end

  test "a worker that is stopped tells those who write" do
    {:ok, worker} = starts(["sleep", "600"])
    writers = for _ <- 1..3, do: Task.async(fn -> Worker.write(worker, @much) end)
    eventually(fn -> Insides.pending_writes(worker) == 3 end)
    writer = Insides.writer(worker)
    monitor = Process.monitor(writer)
    assert Worker.stop(worker) == :ok

    for answer <- Task.await_many(writers) do
      assert {:error, %Error{reason: reason}} = answer
      assert reason in [:epipe, :closed, :worker_down]
    end

    assert_receive {:DOWN, ^monitor, :process, ^writer, _reason}, 20_000
  end

  test "every byte value in writes of any size arrives, in any framing and both ways" do
    :rand.seed(:exsss, {1, 2, ExUnit.configuration()[:seed]})
    all = for byte <- 0..255, into: <<>>, do: <<byte>>

    for packet <- [:raw, 1, 2, 4] do
      {:ok, worker} = starts(["cat"], packet: packet)
      longest = if packet == 1, do: 255, else: 60_000
      data = all |> :binary.copy(4_000) |> chunks(longest)

      writer =
        Task.async(fn ->
          {for(c <- data, do: Worker.write(worker, c)), Worker.close_input(worker)}
        end)

      assert read_pieces(worker, packet) == if(packet == :raw, do: Enum.join(data), else: data)
      {written, :ok} = Task.await(writer)
      assert Enum.uniq(written) == [:ok]
    end
  end

  defp read_pieces(worker, :raw), do: read_all(worker)

  defp read_pieces(worker, packet) do
    case Worker.read(worker, :any, 20_000) do
      {:ok, piece} -> [piece | read_pieces(worker, packet)]
      :eof -> []
    end
  end

  defp chunks("", _longest), do: []

  defp chunks(data, longest) do
    size = min(:rand.uniform(longest), byte_size(data))
    rest = binary_part(data, size, byte_size(data) - size)
    [binary_part(data, 0, size) | chunks(rest, longest)]
  end
end
