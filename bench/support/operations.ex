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

  @doc "The application stopped and started again: the µs of its start, and of its stop."
  @spec application() :: {start :: float(), stop :: float()}
  def application do
    {stop, :ok} = once(fn -> Application.stop(:snakepit) end)
    {start, {:ok, _started}} = once(fn -> Application.ensure_all_started(:snakepit) end)
    {start, stop}
  end

  @doc """
  What an application like this cannot do without: a port, a DETS table, and a record that is on the
  disk when it has started, and when it has stopped. The µs to open them, and to close them.
  """
  @spec port_and_files(Path.t()) :: {open :: float(), close :: float()}
  def port_and_files(directory) do
    program = program("cat")
    table = Path.join(directory, "#{System.unique_integer([:positive])}.dets")
    {:ok, record} = :file.open(table <> ".record", [:raw, :binary, :write])

    {open, {port, name}} =
      once(fn ->
        {:ok, name} = :dets.open_file(make_ref(), file: String.to_charlist(table))
        port = Port.open({:spawn_executable, program}, [:binary])
        :ok = recorded(record)
        {port, name}
      end)

    {close, :ok} =
      once(fn ->
        Port.close(port)
        :ok = :dets.close(name)
        recorded(record)
      end)

    :ok = :file.close(record)
    {open, close}
  end

  defp recorded(record) do
    :ok = :file.write(record, "a record of about this length")
    :file.datasync(record)
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
