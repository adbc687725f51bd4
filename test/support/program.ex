defmodule Snakepit.Test.Program do
  @moduledoc """
  Real OS processes for tests, each ended when its test is over.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Test.{Eventually, ProcScan}

  @fixtures Path.expand("../fixtures", __DIR__)

  @doc """
  Starts a program and gives its OS pid. With `ready: true` it returns when the program has printed
  its first line. Other options are those of `Port.open/2`.
  """
  def start(executable, args \\ [], opts \\ []) do
    {ready, opts} = Keyword.pop(opts, :ready, false)
    path = System.find_executable(executable) || raise "no #{executable} on this machine"
    parent = self()
    reference = make_ref()

    # A process of its own holds the port, so that the test may end before its programs.
    holder =
      spawn(fn ->
        options = [:binary, :exit_status, line: 65_536, args: args] ++ opts
        port = Port.open({:spawn_executable, path}, options)
        {:os_pid, os_pid} = Port.info(port, :os_pid)
        Eventually.eventually(fn -> executed?(os_pid) end)
        if ready, do: receive(do: ({^port, {:data, _first_line}} -> :ok))
        send(parent, {reference, ProcScan.stat(os_pid)})
        receive(do: (:finish -> :ok))
      end)

    receive do
      {^reference, process} ->
        on_exit(fn -> finish(process, holder) end)
        process.os_pid
    after
      30_000 -> raise "#{executable} did not get ready"
    end
  end

  @doc "A fixture in Python, named by its sin. Returns when it has printed its first line."
  def sinner(name, args \\ [], opts \\ []) do
    start("python3", [Path.join(@fixtures, name <> ".py") | args], [ready: true] ++ opts)
  end

  @doc "`sleep`, for as long as any test takes."
  def sleeper(opts \\ []), do: start("sleep", ["600"], opts)

  # Until then it is a copy of the BEAM's own helper; and it has its new name a moment before it has its
  # arguments and its environment. A program that has ended was executed too.
  defp executed?(os_pid) do
    File.read("/proc/#{os_pid}/comm") != {:ok, "erl_child_setup\n"} and
      (ProcScan.command(os_pid) != "" or not ProcScan.running?(os_pid))
  end

  # The test may have ended it, and its pid may be another's by now: the start time tells.
  defp finish(process, holder) do
    if ProcScan.running?(process) do
      System.cmd("kill", ["-KILL", Integer.to_string(process.os_pid)], stderr_to_stdout: true)
      Eventually.eventually(fn -> not ProcScan.running?(process) end)
    end

    send(holder, :finish)
  end
end
