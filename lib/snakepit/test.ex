defmodule Snakepit.Test do
  @moduledoc """
  Checks, in your own tests, that nothing which Snakepit started is left behind.

      defmodule MyApp.ThumbnailsTest do
        use ExUnit.Case

        setup do: Snakepit.Test.check_orphans()

        test "thumbnails are made" do
          Snakepit.Test.assert_no_orphans(fn ->
            assert MyApp.Thumbnails.make("cat.jpg") == :ok
          end)
        end
      end

  The checks search the process table of the machine, not Snakepit's own records. They find everything that carries
  a marker or the lineage of this run, including daemons that emptied their environment.
  """

  alias Snakepit.{Native, Options, OSProcess, Worker}

  # ExUnit is there when this is used, and nobody ships it.
  @compile {:no_warn_undefined, [ExUnit.AssertionError, ExUnit.Callbacks]}

  @schema [
    timeout: [
      type: :milliseconds,
      default: 5_000,
      doc: "how long what has been told to end has to do so"
    ]
  ]

  @pause_ms 10

  @doc """
  Returns the OS processes of this run, workers and everything below them: `:os_pid`, `:command`, and the
  `:worker_id` where it is known.

      iex> {:ok, worker} = Snakepit.Worker.start_link(id: "doc-test", cmd: ["sleep", "60"])
      iex> [%{command: command, worker_id: id}] = Snakepit.Test.os_processes()
      iex> {command, id}
      {["sleep", "60"], "doc-test"}
      iex> Snakepit.Worker.stop(worker)
      iex> Snakepit.Test.os_processes()
      []

  """
  @spec os_processes() :: [
          %{os_pid: pos_integer(), command: [binary()], worker_id: String.t() | nil}
        ]
  def os_processes do
    for process <- members(), do: Map.take(process, [:os_pid, :command, :worker_id])
  end

  @doc """
  Calls `fun`, and fails unless everything that it started is gone afterwards. Returns what `fun` returns.

      iex> Snakepit.Test.assert_no_orphans(fn -> Snakepit.cmd("echo", ["hello"]) end)
      {"hello\\n", 0}

  Processes that were there before do not count. Without a function, it fails if any process of this run is left.

  ## Options

  #{Options.docs(@schema)}

  """
  @spec assert_no_orphans((() -> result), keyword()) :: result when result: term()
  @spec assert_no_orphans(keyword()) :: :ok
  def assert_no_orphans(fun_or_opts \\ [], opts \\ [])

  def assert_no_orphans(fun, opts) when is_function(fun, 0) do
    before = MapSet.new(members(), & &1.identity)
    result = fun.()
    assert_none_but(before, opts)
    result
  end

  def assert_no_orphans(opts, []) when is_list(opts), do: assert_none_but(MapSet.new(), opts)

  @doc """
  Fails unless a process is gone, or ends within the `:timeout`, an option as for `assert_no_orphans/2`. Takes an OS
  pid, or better a `Snakepit.OSProcess`, which cannot be confused with another process.
  """
  @spec assert_gone(pos_integer() | OSProcess.t(), keyword()) :: :ok
  def assert_gone(process, opts \\ []) do
    gone = fn -> if Snakepit.ProcessKiller.process_alive?(process), do: [process], else: [] end

    case wait(gone, deadline(opts)) do
      [] -> :ok
      [process] -> flunk("expected #{inspect(process)} to be gone, it still runs")
    end
  end

  @doc """
  Kills a worker's OS process from outside, and returns when it is dead.

      iex> Process.flag(:trap_exit, true)
      iex> {:ok, worker} = Snakepit.Worker.start_link(cmd: ["sleep", "60"])
      iex> Snakepit.Test.kill_os_process(worker)
      iex> receive do {:EXIT, ^worker, reason} -> reason end
      {:exit_signal, :sigkill}

  """
  @spec kill_os_process(Worker.worker()) :: :ok
  def kill_os_process(worker) do
    {:ok, process} = OSProcess.lookup(Worker.os_pid!(worker))
    :ok = Snakepit.ProcessKiller.kill_process(process, :sigkill)
    assert_gone(process)
  end

  @doc """
  Fails the test if anything that it started is left when it has ended. Use it as
  `setup do: Snakepit.Test.check_orphans()`.
  """
  @spec check_orphans() :: :ok
  def check_orphans do
    before = MapSet.new(members(), & &1.identity)
    ExUnit.Callbacks.on_exit(fn -> assert_none_but(before, []) end)
  end

  defp assert_none_but(before, opts) do
    new = fn -> Enum.reject(members(), &(&1.identity in before)) end

    case wait(new, deadline(opts)) do
      [] ->
        :ok

      left ->
        lines =
          for process <- left do
            "\n  #{process.os_pid} #{Enum.join(process.command, " ")} (worker #{process.worker_id || "unknown"})"
          end

        flunk("expected no OS process to be left, these are:#{lines}")
    end
  end

  defp deadline(opts) do
    System.monotonic_time(:millisecond) + Options.validate!(opts, @schema).timeout
  end

  # The process table does not notify.
  defp wait(left, deadline) do
    case left.() do
      [] ->
        []

      left_over ->
        if System.monotonic_time(:millisecond) > deadline do
          left_over
        else
          receive do
          after
            @pause_ms -> wait(left, deadline)
          end
        end
    end
  end

  # All but those that the guardian keeps ready: they have not become anything yet.
  defp members do
    {:ok, members} = Native.run_members(Snakepit.run_id())
    guardian = Application.app_dir(:snakepit, "priv/native/snakepit_guardian")

    for member <- members,
        {:ok, %{arguments: command}} <- [Native.process_info(member.identity)],
        not match?([^guardian | _], command),
        do: Map.put(member, :command, command)
  end

  defp flunk(message), do: raise(ExUnit.AssertionError, message: message)
end
