defmodule Snakepit.Test.Beam do
  @moduledoc """
  A second BEAM with Snakepit in it, to be killed.

  It runs a piece of code and then obeys lines on its standard input: each is evaluated, and its
  value printed. It has a data directory of its own.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Test.{Eventually, ProcScan}

  defstruct [:port, :os_pid, :start, :data_dir]

  @doc "Starts a BEAM and Snakepit in it; `config` is that of the application."
  def start(config \\ []) do
    data_dir = Keyword.get_lazy(config, :data_dir, &temporary_directory/0)
    config = Keyword.put(config, :data_dir, data_dir)

    code = """
    for {key, value} <- #{inspect(config, limit: :infinity)}, do: Application.put_env(:snakepit, key, value)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    IO.puts("value :started")
    for line <- IO.stream(:stdio, :line) do
      {value, _} = line |> String.trim() |> Base.decode64!() |> Code.eval_string()
      IO.puts("value " <> inspect(value, limit: :infinity))
    end
    """

    ebin = Application.app_dir(:snakepit, "ebin")
    elixir = System.find_executable("elixir")
    arguments = ["-pa", ebin, "-e", code]
    # A BEAM that is made to crash has nothing to say.
    options = [
      :binary,
      line: 1_000_000,
      args: arguments,
      env: [{~c"ERL_CRASH_DUMP_SECONDS", ~c"0"}]
    ]

    port = Port.open({:spawn_executable, elixir}, options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    beam = %__MODULE__{port: port, os_pid: os_pid, data_dir: data_dir}
    on_exit(fn -> kill(beam, "KILL") end)
    :started = value(beam)
    %{beam | start: ProcScan.stat(os_pid).start}
  end

  @doc "Evaluates code there and gives its value, which must be one that can be written down."
  def run(beam, code) do
    tell(beam, code)
    value(beam)
  end

  @doc "Has code evaluated without waiting for a value."
  def tell(beam, code), do: Port.command(beam.port, Base.encode64(code) <> "\n")

  @doc "Sends a signal to the BEAM, by its own pid."
  def kill(beam, signal \\ "KILL") do
    # Its parent is this BEAM's helper, which reaps it: until then the pid is its own, and after
    # that the start time tells.
    case ProcScan.stat(beam.os_pid) do
      %{start: start} when beam.start in [nil, start] ->
        System.cmd("kill", ["-#{signal}", "#{beam.os_pid}"], stderr_to_stdout: true)

      _gone ->
        :ok
    end
  end

  @doc "Waits until the BEAM is gone."
  def await_end(beam, timeout_ms \\ 10_000) do
    Eventually.eventually(fn -> not ProcScan.running?(beam.os_pid) end, timeout_ms)
  end

  def temporary_directory do
    path =
      Path.join(
        System.tmp_dir!(),
        "snakepit_test_#{System.unique_integer([:positive])}_#{System.pid()}"
      )

    File.mkdir_p!(path)
    on_exit(fn -> File.rm_rf!(path) end)
    path
  end

  defp value(%{port: port} = beam) do
    receive do
      {^port, {:data, {:eol, "value " <> value}}} -> value |> Code.eval_string() |> elem(0)
      {^port, {:data, {_, other}}} -> log(other, beam)
    after
      60_000 -> raise "the second BEAM did not answer"
    end
  end

  defp log(line, beam) do
    if System.get_env("SNAKEPIT_TEST_VERBOSE"), do: IO.puts("  second BEAM: #{line}")
    value(beam)
  end
end
