defmodule Snakepit.Test.WorkerCase do
  @moduledoc """
  Tests of workers: each begins and ends with an empty registry and no process of this run. So they run one
  after the other.
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
      alias Snakepit.Test.{Insides, ProcScan}
    end
  end

  setup context do
    # What runs beside it would be taken for what it has left.
    refute context.async
    Process.flag(:trap_exit, true)
    before = remains()

    # Whatever the test left: it dies with the test process, and this is how long it may take.
    on_exit(fn -> eventually(fn -> remains() -- before == [] end) end)
  end

  @doc """
  What there is of workers: registered ids and running processes, by the judge. What another test has
  left may go at any time, so what counts is whether there is anything new.
  """
  def remains do
    ids = for {id, _info} <- ProcessRegistry.list_all_workers(), do: id

    processes =
      for os_pid <- ProcScan.descendants(String.to_integer(System.pid())),
          %{start: start} <- [ProcScan.stat(os_pid)],
          do: {os_pid, start}

    ids ++ processes
  end

  @doc """
  For tests that kill the guardian again and again: Snakepit's supervisor forgives so many restarts within a
  few seconds, and those of other tests are not to count, before these nor after them.
  """
  def fresh_supervisor do
    restart = fn ->
      :ok = Application.stop(:snakepit)
      {:ok, _} = Application.ensure_all_started(:snakepit)
    end

    # What a test logs is not shown, but this is no test.
    quietly = fn -> ExUnit.CaptureLog.capture_log(restart) end
    on_exit(quietly)
    quietly.()
    :ok
  end

  @doc "A shell script as a worker's command."
  def sh(script), do: ["sh", "-c", script]

  @doc "For scripts that wait for a signal: with a dash some seemed to miss it."
  def bash(script), do: ["bash", "-c", script]

  @doc """
  Waits for the end of a worker that the test is linked to, and gives the reason. It may be gone before
  it is monitored; the link tells why, but not before `:noproc` is told.
  """
  def await_down(worker, timeout \\ 20_000) do
    monitor = Process.monitor(worker)

    receive do
      {:DOWN, ^monitor, :process, _pid, reason} when reason != :noproc -> reason
      {:EXIT, ^worker, reason} -> Process.demonitor(monitor, [:flush]) && reason
    after
      timeout -> flunk("#{inspect(worker)} has not ended, or is not linked to the test")
    end
  end

  @doc "Has a process end, whoever is linked to it, and gives the reason: it is monitored before the cause."
  def end_by(pid, cause) do
    monitor = Process.monitor(pid)
    cause.()
    assert_receive {:DOWN, ^monitor, :process, _pid, reason}, 20_000
    reason
  end

  @doc "Whether the process of a worker has ended, which waits for those who want its last output."
  def ended?(worker),
    do: match?({:error, %{reason: :worker_down}}, Snakepit.Worker.os_pid(worker))

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

  @doc "The number that a script has written to a file, as a line; `nil` if it is not there or not whole."
  def number_in(path) do
    with {:ok, text} <- File.read(path), {number, "\n"} <- Integer.parse(text) do
      number
    else
      _not_yet -> nil
    end
  end

  @doc "The path of a program for tests."
  def fixture(name), do: Path.expand("../fixtures/#{name}", __DIR__)
end
