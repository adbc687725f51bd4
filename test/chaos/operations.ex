defmodule Chaos.Operations do
  @moduledoc """
  Single steps for `script/chaos --strace`, each done when it is told to and answered in one line:
  `<step> ok`, `<step> error: ...` for an error that the library gives as one, `<step> crash: ...` for
  anything else.
  """

  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}

  @otp ~w(sys proc_lib gen supervisor dets dets_server dets_sup dets_utils dets_v9 error_logger string
          unicode_util calendar io_lib io_lib_format io_lib_pretty filename filelib file_io_server disk_log
          gen_tcp inet_tcp local_tcp inet socket prim_socket prim_inet queue timer)a
  @elixir [
            Access,
            Bitwise,
            Calendar,
            Calendar.ISO,
            DateTime,
            Enum,
            Exception,
            File,
            GenServer,
            Inspect
          ] ++
            [Inspect.Algebra, Inspect.Any, Inspect.Atom, Inspect.BitString, Inspect.Function] ++
            [
              Inspect.Integer,
              Inspect.List,
              Inspect.Map,
              Inspect.PID,
              Inspect.Reference,
              Inspect.Tuple
            ] ++
            [Kernel.Utils, Keyword, List, Map, MapSet, Path, Process, Regex, Stream, String] ++
            [String.Chars, String.Chars.Atom, String.Chars.BitString, String.Chars.Integer] ++
            [
              String.Chars.List,
              Supervisor,
              DynamicSupervisor,
              System,
              Task,
              ArgumentError,
              ErlangError
            ]

  @doc "What workers are made of. Whoever counts system calls does not want to count the loading of code."
  def keep(plan) do
    for application <- [:snakepit, :logger] do
      Application.load(application)
      {:ok, modules} = :application.get_key(application, :modules)
      :ok = :code.ensure_modules_loaded(modules)
    end

    # Those that are in use, and those that only something that goes wrong needs. All there are take two seconds.
    :ok = :code.ensure_modules_loaded(@otp ++ @elixir)
    Process.flag(:trap_exit, true)
    Process.put(:worker, plan[:worker])
    Process.put(:workers, [])
  end

  def run(name) do
    answer(name, step(name))
  rescue
    # What a stop of the application makes of calls that are under way is no answer, but it is said.
    error -> "#{name} crash: #{inspect(error)}"
  catch
    kind, reason -> "#{name} crash: #{inspect({kind, reason})}"
  end

  defp answer(name, :ok), do: "#{name} ok"
  defp answer(name, {:error, error}), do: "#{name} #{error |> describe() |> one_line()}"
  defp answer(name, other), do: "#{name} crash: #{one_line(inspect(other))}"

  defp describe(%Snakepit.Error{} = error), do: "error: #{Exception.message(error)}"

  # An application that cannot start says why, and where.
  defp describe({:snakepit, reason}), do: "error: #{Exception.format_exit(reason)}"
  defp describe(other), do: "crash: #{inspect(other)}"

  # Lines are what the other side reads.
  defp one_line(text), do: String.replace(text, "\n", " ")

  defp step("spawn") do
    with {:ok, worker} <- Snakepit.Worker.start_link(Process.get(:worker)) do
      Process.put(:workers, [worker | Process.get(:workers)])
      :ok
    end
  end

  # All that are there. One that has ended has ended.
  defp step("stop") do
    answers = for worker <- Process.put(:workers, []), do: Snakepit.Worker.stop(worker)
    Enum.find(answers, :ok, &(&1 != :ok))
  end

  # Both records of a worker, into the journal and from there into the table, and out again. To ask for
  # all of them carries the journal into the table; what it answers while the disk fails is not asked.
  defp step("registration") do
    id = "registered-#{System.unique_integer([:positive])}"

    with :ok <- ProcessRegistry.reserve_worker(id),
         _all = PIDLedger.all(),
         :ok <- PIDLedger.register_process(id, status: :active),
         _all = PIDLedger.all(),
         do: ProcessRegistry.unregister_worker(id)
  end

  # Whatever has happened: who runs is on record.
  defp step("records") do
    running = for worker <- Process.get(:workers), do: Snakepit.Worker.os_pid!(worker)
    missing = running -- PIDLedger.get_all_pids()
    if missing == [], do: :ok, else: {:unrecorded, missing}
  end

  defp step("shutdown"), do: Application.stop(:snakepit)

  defp step("boot") do
    with {:ok, _applications} <- Application.ensure_all_started(:snakepit), do: :ok
  end
end
