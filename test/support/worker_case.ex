defmodule Snakepit.Test.WorkerCase do
  @moduledoc """
  Tests of workers: each begins and ends with an empty registry and no process of this run.
  """

  use ExUnit.CaseTemplate

  import Snakepit.Test.Eventually

  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.Test.ProcScan

  using do
    quote do
      import Snakepit.Test.Eventually
      import Snakepit.Test.WorkerCase

      alias Snakepit.{Error, Worker}
      alias Snakepit.Pool.ProcessRegistry
      alias Snakepit.Test.ProcScan
    end
  end

  setup do
    Process.flag(:trap_exit, true)
    before = remains()

    # Whatever the test left: it dies with the test process, and this is how long it may take.
    on_exit(fn -> eventually(fn -> remains() == before end, 10_000) end)
  end

  @doc "What there is of workers: registered ids and running processes, by the judge."
  def remains do
    ids = for {id, _info} <- ProcessRegistry.list_all_workers(), do: id
    {Enum.sort(ids), Enum.sort(ProcScan.descendants(String.to_integer(System.pid())))}
  end

  @doc "A shell script as a worker's command."
  def sh(script), do: ["sh", "-c", script]

  @doc "For scripts that wait for a signal: with a dash some seemed to miss it."
  def bash(script), do: ["bash", "-c", script]

  @doc "Waits for a worker's end and gives the reason."
  def await_down(worker, timeout \\ 10_000) do
    monitor = Process.monitor(worker)
    assert_receive {:DOWN, ^monitor, :process, _pid, reason}, timeout

    if reason == :noproc, do: told(worker), else: reason
  end

  # One that was gone before it was monitored has told the test, which is linked to it.
  defp told(worker) do
    receive do
      {:EXIT, ^worker, reason} -> reason
    after
      0 -> :noproc
    end
  end

  @doc "Sends a signal from outside, as anybody might."
  def kill(os_pid, signal \\ "KILL") do
    {_output, 0} = System.cmd("kill", ["-#{signal}", "#{os_pid}"])
  end

  @doc "A path that does not exist yet, gone when the test is over."
  def temporary_path(name) do
    path =
      Path.join(
        System.tmp_dir!(),
        "snakepit_#{System.pid()}_#{System.unique_integer([:positive])}_#{name}"
      )

    on_exit(fn -> File.rm_rf!(path) end)
    path
  end

  @doc "The path of a program for tests."
  def fixture(name), do: Path.expand("../fixtures/#{name}", __DIR__)
end
