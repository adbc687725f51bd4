defmodule Snakepit.AttachTest do
  # As a person does it: a BEAM in a window, the keyboard in front of it.
  use ExUnit.Case, async: true

  import Snakepit.Test.Eventually

  alias Snakepit.Test.{Beam, Family, ProcScan, Tmux}

  @moduletag :long
  @moduletag timeout: 180_000
  @moduletag skip: Tmux.missing?()

  @otp List.to_integer(:erlang.system_info(:otp_release))

  setup do
    directory = Beam.temporary_directory()
    window = Tmux.start(directory)
    # What no other test's processes have in their arguments.
    token = Family.token()
    on_exit(fn -> eventually(fn -> ProcScan.with_argument(token) == [] end) end)

    {:ok,
     directory: directory, window: window, token: token, modes: Tmux.modes(window, directory)}
  end

  # A script that begins so, and goes on with `code`.
  defp write_script(%{directory: directory, token: token}, code) do
    path = Path.join(directory, "script.exs")

    File.write!(path, """
    Application.put_env(:snakepit, :data_dir, #{inspect(directory)})
    {:ok, _} = Application.ensure_all_started(:snakepit)
    alias Snakepit.{Terminal, Worker}

    shell = fn ->
      {:ok, worker} =
        Worker.start_link(
          cmd: ["bash", "--norc", "--noediting", "-i", "-s", #{inspect(token)}],
          env: [{"PS1", "inner> "}],
          stdio: :pty
        )

      worker
    end

    #{code}
    """)

    path
  end

  # Without the shell of Erlang, as the documentation says.
  defp run(context, code) do
    ebin = Application.app_dir(:snakepit, "ebin")
    path = write_script(context, code)
    Tmux.line(context.window, "elixir -pa #{ebin} #{path} < /dev/null")
  end

  defp assert_as_before(context) do
    assert Tmux.modes(context.window, context.directory) == context.modes
    Tmux.line(context.window, "echo typed $((6 * 7))")
    Tmux.sees(context.window, "typed 42")
  end

  test "keys go to the program, its screen is seen, and the detach key leaves it", context do
    run(context, """
    worker = shell.()
    IO.inspect(Terminal.attach(worker), label: "left")
    {:ok, os_pid} = Worker.os_pid(worker)
    IO.inspect(Snakepit.ProcessKiller.process_alive?(os_pid), label: "alive")
    """)

    window = context.window
    Tmux.sees(window, "inner> ")
    Tmux.line(window, "echo one $((1 + 1)); stty size")
    Tmux.sees(window, ~r/^one 2\n24 80$/m)

    # In front of the terminal once it says so: an interrupt a moment earlier is the shell's.
    Tmux.line(window, "sh -c 'echo $((40 + 2)) in front; exec sleep 600'")
    Tmux.sees(window, "42 in front")
    Tmux.key(window, "C-c")
    Tmux.line(window, "echo status $?")
    Tmux.sees(window, "status 130")

    Tmux.resize(window, 30, 100)
    # Within a second; the program says when.
    Tmux.line(window, "until [ \"$(stty size)\" = '30 100' ]; do :; done; echo resized")
    Tmux.sees(window, ~r/^resized$/m)

    Tmux.key(window, "C-]")
    Tmux.sees(window, "left: {:ok, :detached}")
    Tmux.sees(window, "alive: true")
    assert_as_before(context)
  end

  test "the end of the program is the end of it", context do
    run(context, """
    Process.flag(:trap_exit, true)
    IO.inspect(Terminal.attach(shell.(), detach_key: <<16, 17>>), label: "left")
    """)

    window = context.window
    Tmux.sees(window, "inner> ")
    # One key of two is passed on with the next one.
    Tmux.keys(window, "echo word")
    Tmux.key(window, "C-a")
    Tmux.key(window, "C-u")
    Tmux.line(window, "exit")
    Tmux.sees(window, "left: {:ok, :ended}")
    assert_as_before(context)
  end

  test "a detach key of two keys", context do
    run(context, """
    IO.inspect(Terminal.attach(shell.(), detach_key: <<16, 17>>), label: "left")
    """)

    Tmux.sees(context.window, "inner> ")
    Tmux.key(context.window, "C-p")
    Tmux.key(context.window, "C-q")
    Tmux.sees(context.window, "left: {:ok, :detached}")
    assert_as_before(context)
  end

  test "the death of who has attached leaves the terminal as it was", context do
    run(context, """
    worker = shell.()
    spawn(fn -> Terminal.attach(worker) end)
    |> then(fn pid ->
      go = #{inspect(Path.join(context.directory, "go"))}
      Stream.repeatedly(fn -> Process.sleep(10); File.exists?(go) end) |> Enum.find(& &1)
      Process.exit(pid, :kill)
      # Who is refused while somebody is attached is not when nobody is any more.
      Stream.repeatedly(fn -> Process.sleep(10); Snakepit.Worker.terminal(worker, {:attach, self()}) end)
      |> Enum.find(& &1 == :ok)
      IO.puts("nobody is attached")
    end)
    """)

    Tmux.sees(context.window, "inner> ")
    File.write!(Path.join(context.directory, "go"), "")
    Tmux.sees(context.window, "nobody is attached")
    assert_as_before(context)
  end

  for {how, ending} <- [
        {"kill -9", ~s|System.cmd("kill", ["-9", System.pid()])|},
        {"System.halt/1", "System.halt(3)"}
      ] do
    # In a script, whose shell restores no terminal: one at which a person types does so by itself.
    test "the end of the BEAM by #{how} leaves the terminal as it was", context do
      path =
        write_script(context, """
        worker = shell.()
        spawn(fn -> Terminal.attach(worker) end)
        go = #{inspect(Path.join(context.directory, "go"))}
        Stream.repeatedly(fn -> Process.sleep(10); File.exists?(go) end) |> Enum.find(& &1)
        #{unquote(ending)}
        """)

      script = Path.join(context.directory, "script")

      File.write!(script, """
      before=$(stty -g)
      elixir -pa #{Application.app_dir(:snakepit, "ebin")} #{path} < /dev/null
      until [ "$(stty -g)" = "$before" ]; do :; done
      echo as $((40 + 2)) before
      """)

      Tmux.line(context.window, "sh #{script}")
      Tmux.sees(context.window, "inner> ")
      File.write!(Path.join(context.directory, "go"), "")
      Tmux.sees(context.window, "as 42 before")
      assert_as_before(context)
    end
  end

  test "a flood can be left", context do
    run(context, """
    {:ok, worker} = Worker.start_link(cmd: ["yes", #{inspect(context.token)}], stdio: :pty)
    IO.inspect(Terminal.attach(worker), label: "left")
    """)

    Tmux.sees(context.window, context.token <> "\n" <> context.token)
    Tmux.key(context.window, "C-]")
    Tmux.sees(context.window, "left: {:ok, :detached}")
    assert_as_before(context)
  end

  test "one person at a time, and only at a terminal", context do
    run(context, """
    {:ok, piped} = Worker.start_link(cmd: ["sleep", "600"], stdio: :pipe)
    {:error, error} = Terminal.attach(piped)
    IO.puts(Exception.message(error))
    worker = shell.()
    :ok = Worker.terminal(worker, {:attach, self()})
    {:error, error} = Terminal.attach(worker)
    IO.puts(Exception.message(error))
    {:error, error} = Terminal.attach(:no_such_worker)
    IO.puts(Exception.message(error))
    """)

    Tmux.sees(context.window, "its :stdio is not :pty")
    Tmux.sees(context.window, "somebody else is attached to it")
    Tmux.sees(context.window, "there is no such worker")
    assert_as_before(context)
  end

  test "where the shell of Erlang reads, it is suspended, or that is refused", context do
    ebin = Application.app_dir(:snakepit, "ebin")
    path = write_script(context, "worker = shell.()")
    window = context.window
    Tmux.line(window, "iex -pa #{ebin} --dot-iex #{path}")
    Tmux.sees(window, "iex(1)> ")
    Tmux.line(window, "Snakepit.Terminal.attach(worker)")

    if @otp < 26 do
      Tmux.sees(window, "before OTP 26")
    else
      Tmux.sees(window, "inner> ")
      # Each of these would be incomplete if somebody else had taken a key.
      for number <- 1..20 do
        Tmux.line(window, "echo #{number}abcdefghijklmnopqrstuvwxyz | tr a-z A-Z")
        Tmux.sees(window, "#{number}ABCDEFGHIJKLMNOPQRSTUVWXYZ")
      end

      Tmux.key(window, "C-]")
      Tmux.sees(window, "{:ok, :detached}")
    end

    for number <- 1..5 do
      Tmux.line(window, "IO.puts(\"shell \" <> Integer.to_string(1000 * #{number} + 7))")
      Tmux.sees(window, "shell #{1000 * number + 7}")
    end

    Tmux.line(window, "System.halt()")
    Tmux.sees(window, ~r/shell> $/m)
    assert_as_before(context)
  end
end
