defmodule Snakepit.Bench.Operations do
  @moduledoc """
  What users of a library for processes do all day, in Snakepit's way and in the way that every BEAM
  has. Each does it once and gives the µs that it took.
  """

  import Snakepit.Bench, only: [once: 1]

  alias Snakepit.Worker

  @doc "A command run to its end, by `Snakepit.cmd/2` or by `System.cmd/2`."
  @spec command(:snakepit | :system) :: float()
  def command(way) do
    program = program("true")
    {us, :ok} = once(fn -> run(way, program) end)
    us
  end

  @doc "That many commands at once, each by a process of its own, until the last has its result."
  @spec commands_at_once(:snakepit | :system, pos_integer()) :: float()
  def commands_at_once(way, count) do
    program = program("true")
    start = fn -> for _one <- 1..count, do: Task.async(fn -> run(way, program) end) end
    {us, results} = once(fn -> Task.await_many(start.(), :infinity) end)
    true = Enum.all?(results, &(&1 == :ok))
    us
  end

  # A pattern, so that what has failed quickly does not count.
  defp run(:snakepit, program) do
    {"", 0} = Snakepit.cmd(program, [])
    :ok
  end

  defp run(:system, program) do
    {"", 0} = System.cmd(program, [])
    :ok
  end

  @doc """
  A process started and ended: a worker, or a program that ends when its port is closed.

  A port tells nothing after it was closed. That the program is gone is seen in `/proc`, which is asked
  without a pause: it takes a core, of which such a machine has two, and errs by some 30 µs.
  """
  @spec start_and_stop(:worker | :port) :: float()
  def start_and_stop(:worker) do
    command = [program("sleep"), "120"]

    {us, :ok} =
      once(fn ->
        {:ok, worker} = Worker.start_link(cmd: command)
        Worker.stop(worker)
      end)

    us
  end

  def start_and_stop(:port) do
    program = program("cat")

    {us, :ok} =
      once(fn ->
        port = Port.open({:spawn_executable, program}, [:binary])
        {:os_pid, os_pid} = Port.info(port, :os_pid)
        Port.close(port)
        await_gone("/proc/#{os_pid}")
      end)

    us
  end

  defp await_gone(path) do
    case :file.read_file_info(path, [:raw]) do
      {:ok, _info} -> await_gone(path)
      {:error, :enoent} -> :ok
    end
  end

  # By its path: nobody has to search for it, and nobody is measured while searching.
  defp program(name), do: System.find_executable(name)
end
