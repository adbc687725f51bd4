defmodule Snakepit.Worker.FileTest do
  # What is logged is captured, from whichever process.
  use Snakepit.Test.WorkerCase, async: false

  import ExUnit.CaptureLog

  @forever "while :; do echo $((n += 1)); sleep 0.01; done"

  defp start(stdio, script, opts \\ []),
    do: Worker.start_link([cmd: bash(script), stdio: stdio] ++ opts)

  defp lines(path), do: path |> File.read!() |> String.split("\n", trim: true)

  defp files_open(path), do: length(Snakepit.Test.OpenFiles.matching(path))

  describe "a file that the process has itself" do
    test "is appended to, or emptied first" do
      path = temporary_path("log")

      for {stdio, expected} <- [
            {{:file, path}, "one\n"},
            {{:file, path}, "one\none\n"},
            {{:file, path, :truncate}, "one\n"},
            {{:file, path, []}, "one\none\n"},
            {{:file, path, truncate: true}, "one\n"}
          ] do
        {:ok, worker} = start(stdio, "echo one")
        assert await_down(worker) == :normal
        assert File.read!(path) == expected
      end
    end

    test "cannot be reopened, and that is said" do
      {:ok, worker} = start({:file, temporary_path("log")}, "sleep 600")
      assert {:error, %Error{reason: :einval} = error} = Worker.reopen_output(worker)
      assert Exception.message(error) =~ "reopen: true"
      Worker.stop(worker)

      {:ok, worker} = start(:pipe, "sleep 600")
      assert {:error, %Error{reason: :einval}} = Worker.reopen_output(worker)
      Worker.stop(worker)
    end

    test "is emptied by a command as well" do
      path = temporary_path("log")
      File.write!(path, "before\n")
      command = Snakepit.Command.new!(cmd: ["echo", "one"], stdio: {:file, path, :truncate})
      {:ok, child} = Snakepit.Guardian.spawn(command)
      :ok = Snakepit.Guardian.release(child)
      id = child.id
      assert_receive {Snakepit.Guardian, ^id, {:tree_gone, _killed}}
      assert File.read!(path) == "one\n"
    end
  end

  describe "a file that can be reopened" do
    test "gets everything, from both streams, to the last byte" do
      path = temporary_path("log")
      File.write!(path, "before\n")
      script = "echo one; echo two >&2; seq 100000; printf last"
      {:ok, worker} = start({:file, path, reopen: true}, script)
      assert await_down(worker) == :normal
      expected = ["before", "one", "two"] ++ Enum.map(1..100_000, &"#{&1}") ++ ["last"]
      assert lines(path) == expected
      assert files_open(path) == 0
    end

    test "is rotated without the process knowing, and without a line lost" do
      path = temporary_path("log")
      {:ok, worker} = start({:file, path, reopen: true}, @forever)

      rotated =
        for number <- 1..5 do
          eventually(fn -> File.exists?(path) and lines(path) != [] end)
          aside = temporary_path("log.#{number}")
          File.rename!(path, aside)
          assert Worker.reopen_output(worker) == :ok
          aside
        end

      eventually(fn -> lines(path) != [] end)
      for aside <- rotated, do: assert(files_open(aside) == 0)
      Worker.stop(worker)
      numbers = for file <- rotated ++ [path], line <- lines(file), do: String.to_integer(line)
      assert numbers == Enum.to_list(1..length(numbers))
      for file <- rotated, do: assert(lines(file) != [])
    end

    test "that cannot be reopened is written to as before" do
      directory = temporary_path("logs")
      File.mkdir!(directory)
      path = Path.join(directory, "log")
      {:ok, worker} = start({:file, path, reopen: true}, @forever)
      eventually(fn -> lines(path) != [] end)
      aside = temporary_path("aside")
      File.rename!(directory, aside)

      assert {:error, %Error{operation: :reopen_output, reason: :enoent} = error} =
               Worker.reopen_output(worker)

      assert Exception.message(error) =~ path
      count = length(lines(Path.join(aside, "log")))
      eventually(fn -> length(lines(Path.join(aside, "log"))) > count end)
      Worker.stop(worker)
    end

    test "that cannot be opened at all is why the worker does not start" do
      path = Path.join(temporary_path("no_directory"), "log")

      assert {:error, %Error{operation: :start, reason: :enoent} = error} =
               start({:file, path, reopen: true}, "true")

      assert Exception.message(error) =~ inspect(path)
      assert {:error, %Error{}} = start({:file, path, reopen: true, truncate: true}, "true")
    end

    test "is emptied at the start if that is wanted" do
      path = temporary_path("log")
      File.write!(path, "before\n")
      {:ok, worker} = start({:file, path, reopen: true, truncate: true}, "echo one")
      assert await_down(worker) == :normal
      assert File.read!(path) == "one\n"
    end

    test "that is full costs the process nothing, and what is lost is said" do
      test = self()

      log =
        capture_log(fn ->
          {:ok, worker} = start({:file, "/dev/full", reopen: true}, "seq 100000; exit 3")
          send(test, {:ended, await_down(worker)})
        end)

      assert_received {:ended, {:exit_status, 3}}
      assert log =~ ~s(cannot write its output to "/dev/full": no space left on device)
      assert [_before, _after] = String.split(log, "cannot write its output")
      assert log =~ "has lost up to 588895 bytes of its output"
    end

    test "what was lost is counted in the file when there is room again" do
      path = temporary_path("log")
      File.ln_s!("/dev/full", path)
      script = "echo lost; read line < #{path}.go; echo kept"
      {_output, 0} = System.cmd("mkfifo", [path <> ".go"])
      on_exit(fn -> File.rm(path <> ".go") end)

      log =
        capture_log(fn ->
          {:ok, worker} = start({:file, path, reopen: true}, script)
          eventually(fn -> match?({:ok, "lost\n"}, Worker.output_tail(worker)) end)
          File.rm!(path)
          assert Worker.reopen_output(worker) == :ok
          File.write!(path <> ".go", "on\n")
          assert await_down(worker) == :normal
        end)

      cause = "no space left on device (enospc)"

      assert File.read!(path) ==
               "\n[snakepit: up to 5 bytes could not be written here: #{cause}]\nkept\n"

      assert log =~ "writes its output to #{inspect(path)} again; up to 5 bytes of it were lost"
    end
  end

  test "options that are none are refused before anything starts" do
    for {stdio, message} <- [
          {{:file, "a", reopen: 1}, ~r/:stdio: expected :reopen/},
          {{:file, "a", rotate: true}, ~r/unknown option :rotate/},
          {{:file, "", reopen: true}, ~r/:stdio/},
          {{:file, "a", :append}, ~r/:stdio/}
        ] do
      assert_raise ArgumentError, message, fn ->
        Worker.start_link(cmd: ["true"], stdio: stdio)
      end
    end

    assert_raise ArgumentError, ~r/:stdio/, fn ->
      Worker.start_link(cmd: ["true"], stdio: {:file, "a", reopen: true}, output: :logger)
    end
  end
end
