defmodule Snakepit.AccountsTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  # More than the BEAM has threads for files.
  @callers 30

  defp start do
    directory = Beam.temporary_directory()
    env = [Shim.variable("hangs_on_names"), {"NAMES_DIRECTORY", directory}]
    {Beam.start([], env: env), directory}
  end

  defp asked(directory) do
    case File.read(Path.join(directory, "asked")) do
      {:ok, bytes} -> byte_size(bytes)
      {:error, :enoent} -> 0
    end
  end

  defp ask(beam, names) do
    Beam.run(beam, """
    for {name, number} <- Enum.with_index(#{inspect(names)}) do
      spawn(fn ->
        command = Snakepit.Command.new!(cmd: ["true"], user: name)
        answer = Snakepit.Command.to_request(command, [])
        Process.register(self(), :"asked_\#{number}")
        receive do: (:never -> answer)
      end)
    end

    :ok
    """)
  end

  defp answered(beam),
    do: Beam.run(beam, "Enum.count(0..#{@callers - 1}, &Process.whereis(:\"asked_\#{&1}\"))")

  # Reading a file needs one of the threads that asking does.
  defp reads_files?(beam) do
    Beam.run(beam, """
    task = Task.async(fn -> File.read!("/proc/self/stat") end)
    Task.yield(task, 20_000) != nil
    """)
  end

  test "a name that many ask for is looked up once" do
    {beam, directory} = start()
    ask(beam, List.duplicate("slow", @callers))
    eventually(fn -> asked(directory) == 1 end)
    assert reads_files?(beam)
    assert answered(beam) == 0

    File.write!(Path.join(directory, "slow"), "")
    eventually(fn -> answered(beam) == @callers end)
    assert asked(directory) == 1

    request =
      ~s|Snakepit.Command.to_request(Snakepit.Command.new!(cmd: ["true"], user: "slow"), [])|

    assert Beam.run(beam, "{:ok, %{uid: uid}} = #{request}; uid") == 0
    assert asked(directory) == 1
  end

  test "however many names nobody answers for, files are read on, and names that are known are found" do
    {beam, directory} = start()
    names = for number <- 1..@callers, do: "slow#{number}"
    ask(beam, names)
    eventually(fn -> asked(directory) > 0 end)
    assert reads_files?(beam)
    for name <- names, do: File.write!(Path.join(directory, name), "")
    eventually(fn -> answered(beam) == @callers end)
    assert asked(directory) == @callers
  end
end
