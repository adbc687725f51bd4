defmodule Snakepit.CommandLineTest do
  use ExUnit.Case, async: true

  doctest Snakepit.CommandLine
  doctest Snakepit.Doctor

  alias Snakepit.{CommandLine, Doctor}
  alias Snakepit.Test.{Beam, GuardianCommand}

  @man Path.expand("../../priv/man/snakepit_guardian.1", __DIR__)

  test "what cannot be a command is refused before anything is started" do
    for wrong <- [[], ["init", "--", "true"], ["k3x9a2p"], ["ps", :json], ["ps", "a\0b"], "ps"] do
      assert_raise ArgumentError, ~r/expected a command/, fn -> CommandLine.run(wrong) end
    end
  end

  test "nothing of the program is left in the caller's mailbox, and a status is returned" do
    Process.flag(:trap_exit, true)
    assert {_text, 64} = CommandLine.run(["ps", "--nonsense"])
    assert {_text, 2} = CommandLine.run(["ps", "--data-dir", "/nonexistent"])
    refute_received _anything
  end

  test "the directory of this run is meant, unless another is named" do
    {text, 0} = CommandLine.run(["ps"])
    assert text =~ Snakepit.Run.current!().data_dir and text =~ Snakepit.run_id()
    directory = Beam.temporary_directory()
    assert CommandLine.run(["ps", "--data-dir", directory]) == {"#{directory}\nno open runs\n", 0}
    assert {"usage: " <> _rest, 0} = CommandLine.run(["ps", "--help"])
  end

  test "no line of a table is longer than was said" do
    for width <- [20, 60] do
      {text, 0} = CommandLine.run(["ps", "--width", "#{width}"])
      for line <- String.split(text, "\n"), do: assert(String.length(line) <= width)
    end
  end

  test "the doctor says the same to Elixir and to a shell" do
    {answer, _status} = GuardianCommand.json(["doctor", "--data-dir", CommandLine.data_dir()])
    report = for finding <- Doctor.report(), do: {finding.check, Atom.to_string(finding.level)}

    assert report ==
             for(%{"check" => check, "level" => level} <- answer["findings"], do: {check, level})

    for %{level: level} = one when level != :fine <- Doctor.report(), do: assert(one.remedy != "")
  end

  test "a data directory of a newer version is refused politely" do
    directory = Beam.temporary_directory()
    File.write!(Path.join(directory, "instance"), "snakepit 2 something else\n")
    File.chmod!(Path.join(directory, "instance"), 0o600)

    for command <- ~w(ps tree reap doctor) do
      assert {text, 2} = GuardianCommand.run([command, "--data-dir", directory])
      assert text =~ "newer Snakepit (layout 2)"
    end
  end

  test "without a name, the data directories of this user in the usual places are meant" do
    home = Beam.temporary_directory()
    env = [{"HOME", home}, {"XDG_STATE_HOME", nil}, {"SNAKEPIT_DATA_DIR", nil}, {"TMPDIR", home}]
    instance = "snakepit 1 0123456789abcdef\n"

    for name <- ["one", "two"] do
      directory = Path.join(home, ".local/state/snakepit/#{name}")
      File.mkdir_p!(directory)
      File.write!(Path.join(directory, "instance"), instance)
      File.chmod!(Path.join(directory, "instance"), 0o600)
    end

    {%{"data_dirs" => found}, 0} = GuardianCommand.json(["ps"], env: env)
    paths = for %{"path" => path} <- found, String.starts_with?(path, home), do: path
    assert Enum.map(paths, &Path.basename/1) == ["one", "two"]
    {text, 2} = GuardianCommand.run(["reap", "--yes"], env: env)
    assert text =~ "say which" and text =~ "--data-dir #{hd(paths)}"
    env = [{"STATE_DIRECTORY", "#{home}/.local/state:/x"} | env]
    File.rename!(Path.join(home, ".local/state/snakepit"), Path.join(home, "runs"))
    File.rename!(Path.join(home, "runs/one"), Path.join(home, ".local/state/snakepit"))
    {%{"data_dirs" => [%{"path" => path}]}, 0} = GuardianCommand.json(["ps"], env: env)
    assert path == Path.join(home, ".local/state/snakepit")
  end

  test "the manual page has every command and option that --help has, and no other option" do
    {help, 0} = GuardianCommand.run(["--help"])
    man = @man |> File.read!() |> String.replace("\\-", "-") |> String.replace(~r/\\f[A-Z]/, "")
    commands = for [_, name] <- Regex.scan(~r/^  ([a-z]+) /m, help), do: name
    assert commands == ~w(ps tree history reap doctor init)
    for name <- commands, do: assert(man =~ ~r/^\.TP\n\.B #{name}$/m, name)

    options = fn text ->
      ~r/--[a-z][a-z-]+/ |> Regex.scan(text) |> List.flatten() |> Enum.uniq()
    end

    assert Enum.sort(options.(man)) == Enum.sort(options.(help))
  end

  @groff System.find_executable("groff")
  @tag skip: if(@groff, do: false, else: "there is no groff (script/bootstrap)")
  test "the manual page is formatted without a warning" do
    assert {"", 0} =
             System.cmd("groff", ["-man", "-Tutf8", "-ww", "-z", @man], stderr_to_stdout: true)
  end
end
