defmodule Snakepit.Test.WrappedBeam do
  @moduledoc """
  A second BEAM behind other programs that decide where and as whom it runs: `setpriv`, `unshare`,
  `prlimit`. Once started it is a `Snakepit.Test.Beam` like any other.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Test.{Beam, Eventually, ProcScan}

  @doc """
  Starts one. Options:

    * `:wrapper` - program and arguments that come before `elixir`
    * `:config` - that of the application
    * `:env` - variables for it

  It runs a copy of Snakepit that everybody may read, wherever this one is, and has a data directory
  that everybody may write to.
  """
  def start(options \\ []) do
    data_dir = Beam.temporary_directory()
    File.chmod!(data_dir, 0o777)
    config = [data_dir: data_dir] ++ Keyword.get(options, :config, [])
    wrapper = Keyword.get(options, :wrapper, [])
    [program | arguments] = wrapper ++ [System.find_executable("elixir")]
    arguments = arguments ++ ["-pa", Path.join(copy(), "ebin"), "-e", code(config)]
    env = [{~c"HOME", String.to_charlist(data_dir)}] ++ Keyword.get(options, :env, [])

    port =
      Port.open({:spawn_executable, System.find_executable(program)}, [
        :binary,
        :stderr_to_stdout,
        :exit_status,
        line: 1_000_000,
        cd: data_dir,
        args: arguments,
        env: env
      ])

    {:os_pid, outer} = Port.info(port, :os_pid)
    outer = ProcScan.stat(outer)
    on_exit(fn -> finish(outer) end)
    await_start(port, [])
    # `unshare --fork` stays in front of what it has started.
    os_pid = Eventually.eventually(fn -> beam_below(outer.os_pid) end)
    beam = %Beam{port: port, os_pid: os_pid, data_dir: data_dir}
    beam = %{beam | start: ProcScan.stat(os_pid).start}
    on_exit(fn -> Beam.kill(beam) end)
    beam
  end

  @doc "Snakepit as a directory that any user can read: not a link into somebody's home."
  def copy do
    directory = Path.join(Beam.temporary_directory(), "snakepit")
    File.mkdir_p!(directory)
    source = Application.app_dir(:snakepit)
    {_output, 0} = System.cmd("cp", ["-rL", "#{source}/ebin", "#{source}/priv", directory])
    {_output, 0} = System.cmd("chmod", ["-R", "a+rX", Path.dirname(directory)])
    directory
  end

  defp code(config) do
    """
    for {key, value} <- #{inspect(config, limit: :infinity)}, do: Application.put_env(:snakepit, key, value)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    IO.puts("value :started")
    for line <- IO.stream(:stdio, :line) do
      {value, _} = line |> String.trim() |> Base.decode64!() |> Code.eval_string()
      IO.puts("value " <> inspect(value, limit: :infinity))
    end
    """
  end

  defp await_start(port, lines) do
    receive do
      {^port, {:data, {:eol, "value :started"}}} -> :ok
      {^port, {:data, {_, line}}} -> await_start(port, [line | lines])
      {^port, {:exit_status, status}} -> raise "it ended with #{status}: #{text(lines)}"
    after
      30_000 -> raise "it did not start: #{text(lines)}"
    end
  end

  defp text(lines), do: lines |> Enum.reverse() |> Enum.join("\n")

  defp beam_below(os_pid) do
    if File.read("/proc/#{os_pid}/comm") == {:ok, "beam.smp\n"} do
      os_pid
    else
      below = for %{os_pid: child, parent: ^os_pid} <- ProcScan.all(), do: child
      Enum.find_value(below, &beam_below/1)
    end
  end

  defp finish(%{os_pid: os_pid, start: start}) do
    if match?(%{start: ^start}, ProcScan.stat(os_pid)),
      do: System.cmd("kill", ["-KILL", "#{os_pid}"], stderr_to_stdout: true)
  end
end
