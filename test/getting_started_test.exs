defmodule Snakepit.GettingStartedTest do
  # What guides/getting-started.md says, done in a copy of its project. Snakepit itself is not compiled
  # again: the copy has a link to what these tests run with.
  use ExUnit.Case, async: true

  import Snakepit.Test.Snippets, only: [page: 1]

  alias Snakepit.Test.{Beam, HostProject}

  @moduletag :long
  @moduletag timeout: 120_000

  @guide page("guides/getting-started.md")
  @root Path.expand("..", __DIR__)

  setup_all do
    directory = Beam.temporary_directory()
    File.cp_r!(Path.join(@root, "examples/wordy"), directory)
    edit(directory, "mix.exs", ~s("../.."), inspect(@root))
    File.mkdir_p!(Path.join(directory, "_build/test/lib"))
    snakepit = Application.app_dir(:snakepit)
    File.ln_s!(snakepit, Path.join(directory, "_build/test/lib/snakepit"))
    {output, status} = mix(directory, ["test", "--no-deps-check"])
    assert status == 0, output
    # The latter since Elixir 1.20.
    assert output =~ ~r/^(3 tests, 0 failures|Result: 3 passed)$/m
    {:ok, directory: directory}
  end

  # A copy of its own, of a project that is compiled already, for a test that breaks something in it.
  defp copy(directory) do
    copy = Beam.temporary_directory()
    {_output, 0} = System.cmd("cp", ["-a", "#{directory}/.", copy])
    copy
  end

  defp edit(directory, path, pattern, replacement) do
    path = Path.join(directory, path)
    text = File.read!(path)
    assert String.contains?(text, pattern)

    # The size changes too: in the second in which it was compiled, mix sees that and nothing else.
    File.write!(path, String.replace(text, pattern, replacement) <> "\n")
  end

  defp mix(directory, arguments) do
    environment = List.keydelete(HostProject.environment(directory), "MIX_ENV", 0)
    environment = [{"MIX_ENV", "test"} | environment]
    System.cmd("mix", arguments, cd: directory, env: environment, stderr_to_stdout: true)
  end

  # The pieces of a block, between its dots, have to be in what was said, in that order.
  defp assert_said(name, said) do
    [[_, block]] = Regex.scan(~r/<!-- output: #{name} -->\n```text\n(.*?)```/s, @guide)

    Enum.reduce(String.split(numberless(block), "…"), numberless(said), fn piece, rest ->
      assert [_before, rest] = String.split(rest, String.trim(piece), parts: 2),
             "expected #{inspect(piece)} in:\n#{said}"

      rest
    end)
  end

  defp numberless(text), do: Regex.replace(~r/\d+/, text, "N")

  test "the commands say what the guide says", %{directory: directory} do
    blocks = Regex.scan(~r/<!-- run -->\n```console\n(.*?)```/s, @guide)
    assert length(blocks) == 3

    for [_, block] <- blocks,
        [_, code, expected] <- Regex.scan(~r/^\$ mix run -e '(.*)'\n((?:[^$].*\n)*)/m, block) do
      {said, _status} = mix(directory, ["run", "--no-deps-check", "-e", code])
      assert said =~ expected, "#{code} said:\n#{said}"
    end
  end

  test "a failed start says why", %{directory: directory} do
    project = copy(directory)
    edit(project, "priv/python/collector.py", "import time", "import nosuchmodule")
    assert {said, 1} = mix(project, ["run", "--no-deps-check"])
    assert_said("a failed start", said)
  end

  test "a misspelt program is named", %{directory: directory} do
    project = copy(directory)

    edit(
      project,
      "lib/wordy/application.ex",
      ~s("python3", script("collector),
      ~s("pyhton3", script("collector)
    )

    assert {said, 1} = mix(project, ["run", "--no-deps-check"])
    assert_said("a misspelt program", said)
  end

  test "a worker of a pool that fails is in the log, with the end of its output", context do
    project = copy(context.directory)
    edit(project, "priv/python/count_words.py", "import sys", "import nosuchmodule")

    # Ends when a worker has: what it has to say is in the log then.
    code = """
    %{pid: worker} = hd(Snakepit.Pool.list_workers(Wordy.Counters))
    monitor = if worker, do: Process.monitor(worker)
    if monitor, do: receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
    """

    assert {said, 0} = mix(project, ["run", "--no-deps-check", "-e", code])
    assert_said("a failed worker", said)
  end
end
