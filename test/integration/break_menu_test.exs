defmodule Snakepit.BreakMenuTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan}

  @moduletag :long
  @moduletag timeout: 120_000

  @terminal Path.expand("../fixtures/under_a_terminal.py", __DIR__)

  # Typed at a terminal, Ctrl-C goes to every process in the foreground, and the menu's `a` ends the
  # BEAM without another word.
  for {name, arguments, keys} <- [
        {"Ctrl-C and a, in iex", ["iex"], [<<3>>, "a\n"]},
        {"Ctrl-C twice, in iex", ["iex"], [<<3>>, <<3>>]},
        {"Ctrl-C and a, in elixir", ["elixir", "--no-halt"], [<<3>>, "a\n"]},
        {"Ctrl-\\, in iex", ["iex"], [<<28>>]},
        {"a terminal that goes away, in iex", ["iex"], [:hang_up]}
      ] do
    test "after #{name} nothing is left" do
      bystanders = Family.bystanders()
      token = Family.token()
      terminal = start(unquote(arguments), token)
      eventually(fn -> length(Family.members(token)) == 4 end, 30_000)
      # Ready to be typed at once the code has run.
      await(terminal, "running")
      [beam] = beams_below(terminal.os_pid)
      [guardian] = for pid <- guardians(token), do: pid

      [first | second] = unquote(keys)
      press(terminal, first)

      for key <- second do
        await(terminal, "BREAK:")
        press(terminal, key)
      end

      eventually(fn -> not ProcScan.running?(beam) end, 20_000)
      eventually(fn -> not ProcScan.running?(guardian) end, 20_000)
      assert Family.members(token) == []
      assert Enum.all?(bystanders, &ProcScan.running?/1)
    end
  end

  defp start(arguments, token) do
    data_dir = Beam.temporary_directory()
    ebin = Application.app_dir(:snakepit, "ebin")

    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(data_dir)})
    Application.put_env(:snakepit, :watchdog, grace_period_ms: 500)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    Snakepit.Test.Family.launch(#{inspect(token)})
    IO.puts("run" <> "ning")
    """

    [program | options] = arguments
    python = System.find_executable("python3")
    command = [@terminal, program] ++ options ++ ["-pa", ebin, "-e", code]
    options = [:binary, :exit_status, args: command, env: [{~c"TERM", ~c"dumb"}]]
    port = Port.open({:spawn_executable, python}, options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    start = ProcScan.stat(os_pid).start

    on_exit(fn ->
      # With its terminal gone, what runs there ends too.
      if match?(%{start: ^start}, ProcScan.stat(os_pid)),
        do: System.cmd("kill", ["-KILL", "#{os_pid}"], stderr_to_stdout: true)
    end)

    %{port: port, os_pid: os_pid}
  end

  defp press(terminal, :hang_up) do
    {_output, 0} = System.cmd("kill", ["-KILL", "#{terminal.os_pid}"])
  end

  defp press(terminal, key), do: Port.command(terminal.port, key)

  defp await(%{port: port} = terminal, text, seen \\ "") do
    if String.contains?(seen, text) do
      :ok
    else
      receive do
        {^port, {:data, data}} -> await(terminal, text, seen <> data)
        {^port, {:exit_status, status}} -> flunk("it ended with #{status}: #{seen}")
      after
        20_000 -> flunk("no #{inspect(text)} in: #{seen}")
      end
    end
  end

  defp beams_below(os_pid) do
    for pid <- ProcScan.descendants(os_pid),
        File.read("/proc/#{pid}/comm") == {:ok, "beam.smp\n"},
        do: pid
  end

  # The parent of what has lost its own, and of the leader.
  defp guardians(token) do
    for member <- Family.members(token),
        %{parent: parent} <- [ProcScan.stat(member)],
        File.read("/proc/#{parent}/comm") == {:ok, "snakepit_guardi\n"},
        uniq: true,
        do: parent
  end
end
