defmodule Snakepit.PipeTest do
  # Descriptors of this BEAM are counted, so nothing else may open any.
  use Snakepit.Test.GuardianCase, async: false

  alias Snakepit.{Guardian, Pipe, Stdio}
  alias Snakepit.Test.ProcScan

  @both %Stdio{input: :pipe, output: :pipe}

  defp descriptors do
    for fd <- File.ls!("/proc/self/fd"),
        {:ok, "pipe:" <> _ = target} <- [File.read_link("/proc/self/fd/#{fd}")],
        do: target
  end

  describe "a program that opens its streams by name" do
    test "gets them, as it would in a shell" do
      assert Snakepit.cmd("cat", ["/dev/stdin"], input: "in") == {"in", 0}
      assert Snakepit.cmd("sh", ["-c", "echo out > /dev/stdout"]) == {"out\n", 0}

      both = "echo out | tee /dev/stderr"
      assert Snakepit.cmd("sh", ["-c", both], stderr_to_stdout: true) == {"out\nout\n", 0}

      {:ok, result} = Snakepit.run("sh", ["-c", "echo err > /dev/stderr"])
      assert result.stderr == "err\n"
    end

    test "has no input unless it is given some" do
      assert Snakepit.cmd("cat", []) == {"", 0}
      assert Snakepit.cmd("readlink", ["/proc/self/fd/0"]) == {"/dev/null\n", 0}
    end
  end

  test "every byte value in chunks of any size comes back, both ways at once" do
    :rand.seed(:exsss, {1, 2, 3})
    all = for byte <- 0..255, into: <<>>, do: <<byte>>

    for size <- [0, 1, 255, 65_535, 65_536, 65_537, 1_000_003] do
      input = all |> :binary.copy(div(size, 256) + 1) |> binary_part(0, size)
      chunks = chunks(input)
      assert {^input, 0} = Snakepit.cmd("cat", [], input: chunks)

      assert ["cat"]
             |> Snakepit.stream!(input: chunks)
             |> Enum.join() == input
    end
  end

  defp chunks(""), do: []

  defp chunks(data) do
    size = min(:rand.uniform(100_000), byte_size(data))
    [binary_part(data, 0, size) | data |> binary_part(size, byte_size(data) - size) |> chunks()]
  end

  test "a pipe that nobody reads makes the program wait, and a late reader gets everything" do
    stream = Snakepit.stream!(["sh", "-c", "yes | head -c 1000000; echo end"])
    {:ok, size} = Agent.start_link(fn -> 0 end)

    Enum.each(stream, fn data ->
      # More than a pipe holds can not have been written before the first of it is read.
      if Agent.get_and_update(size, &{&1, &1 + byte_size(data)}) == 0,
        do: assert(byte_size(data) <= 65_536)
    end)

    assert Agent.get(size, & &1) == 1_000_004
  end

  test "input that the program does not want is no error" do
    input = :binary.copy("x", 10_000_000)
    assert Snakepit.cmd("true", [], input: input) == {"", 0}
    assert {"x", 0} = Snakepit.cmd("head", ["-c", "1"], input: input)
    assert {_output, :timeout} = Snakepit.cmd("sleep", ["60"], input: input, timeout: 50)
  end

  test "no descriptor, process or message is left, however it ends" do
    before = descriptors()
    processes = length(Process.list())
    input = :binary.copy("x", 1_000_000)

    for _ <- 1..20 do
      Snakepit.cmd("cat", [], input: input)
      Snakepit.cmd("yes", [], max_output: 10)
      Snakepit.cmd("sleep", ["60"], input: input, timeout: 1)
      Snakepit.run("no-such-program", [], input: input)
      Snakepit.stream!(["yes"]) |> Enum.take(1)

      catch_throw(
        Snakepit.stream!(["yes"], input: input)
        |> Enum.each(fn _ -> throw(:enough) end)
      )
    end

    eventually(fn -> descriptors() -- before == [] end)
    eventually(fn -> length(Process.list()) <= processes end)
    refute_received _message
  end

  test "a guardian that is stopped, and takes no descriptors, holds callers up and loses none" do
    guardian = Guardian.os_pid()
    {_output, 0} = System.cmd("kill", ["-STOP", "#{guardian}"])
    # More than its socket holds.
    tasks = for n <- 1..600, do: Task.async(fn -> Snakepit.cmd("echo", ["#{n}"]) end)
    {_output, 0} = System.cmd("kill", ["-CONT", "#{guardian}"])
    expected = for n <- 1..600, do: {"#{n}\n", 0}
    assert Task.await_many(tasks, 60_000) == expected
  end

  test "a caller that is killed takes its pipes and its program along" do
    before = descriptors()
    input = :binary.copy("x", 1_000_000)

    for {program, options} <- [{"yes", []}, {"sleep", [input: input]}, {"cat", [input: input]}] do
      token = Snakepit.Test.Family.token()
      test = self()

      caller =
        spawn(fn ->
          args = ["-c", "#{program} #{if program == "sleep", do: "600"}", token]

          ["sh" | args]
          |> Snakepit.stream!(options)
          |> Stream.concat([:end])
          |> Enum.each(fn _chunk ->
            send(test, :reading)
            Process.sleep(:infinity)
          end)
        end)

      monitor = Process.monitor(caller)
      eventually(fn -> ProcScan.with_argument(token) != [] end)
      if program != "sleep", do: assert_receive(:reading, 20_000)
      Process.exit(caller, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^caller, :killed}, 20_000
      eventually(fn -> ProcScan.with_argument(token) == [] end)
    end

    eventually(fn -> descriptors() -- before == [] end)
  end

  test "what is closed is closed for everybody, and once" do
    {:ok, %{input: input, output: output}, _stdio} = Guardian.open_streams(@both)
    assert Pipe.read(output, 0) == :timeout
    assert Pipe.close(output) == :ok
    assert Pipe.close(output) == :ok
    assert Pipe.read(output, 0) == :closed
    assert Pipe.close(input) == :ok
    monitor = Process.monitor(self())
    assert Pipe.write(input, "x", monitor) == {:error, :closed}
    assert Pipe.write(input, "", monitor) == :ok
  end

  test "a reader that has given up gets no message later" do
    {:ok, %{input: input, output: output}, stdio} = Guardian.open_streams(@both)
    assert Pipe.read(output, 10) == :timeout
    assert Pipe.read(output, 10) == :timeout
    command = %{Snakepit.Command.new!(cmd: ["cat"]) | stdio: stdio}
    {:ok, child} = Guardian.spawn(command)
    :ok = Guardian.release(child)
    monitor = Process.monitor(self())
    assert Pipe.write(input, "late", monitor) == :ok
    assert Pipe.read(output, 20_000) == {:ok, "late"}
    :ok = Pipe.close(input)
    assert Pipe.read(output, 20_000) == :closed
    :ok = Pipe.close(output)
    await_exit(child)
    refute_received {:select, _pipe, _tag, _ready}
  end

  test "pipes are no lifeline" do
    {:ok, pipes, %{token: token}} = Guardian.open_streams(%Stdio{output: :pipe})
    command = Snakepit.Command.new!(cmd: ["true"], lifeline: token)
    {:ok, child} = Guardian.spawn(command)
    assert {:error, %{step: :stdio, reason: :enotsock}} = Guardian.release(child)
    Stdio.close(pipes)
  end
end
