defmodule Snakepit.CommandLine do
  @moduledoc """
  The commands of `snakepit_guardian` from Elixir: `ps`, `tree`, `history`, `reap` and `doctor`.

  The program reads a data directory and needs no BEAM. Mix has the tasks `mix snakepit.ps` and so on; a release has the
  program itself in `lib/snakepit-VERSION/priv/native/`, and this function:

      bin/my_app rpc 'IO.puts(elem(Snakepit.CommandLine.run(["history"]), 0))'

  Without `--data-dir` it is the directory of this BEAM's run, or the one that a start would use.

      iex> {text, 0} = Snakepit.CommandLine.run(["ps"])
      iex> text =~ Snakepit.run_id()
      true
      iex> {"snakepit_guardian " <> _version, 0} = Snakepit.CommandLine.run(["--version"])

  What a living BEAM knows of its own workers is in `Snakepit.Status`, and `Snakepit.Doctor` has the findings of `doctor`
  as data. Commands, options and exit statuses are described in `priv/man/snakepit_guardian.1`.
  """

  # A program of ours that looks and ends: the guardian has no part in it, and no run is begun for it. A port starts
  # it, not the NIF, so that it can do what a BEAM must not: wait, and be killed.

  alias Snakepit.DataDir.Place
  alias Snakepit.Run

  @with_directory ~w(ps tree history reap doctor)
  @commands @with_directory ++ ~w(--help --version)

  @doc "Returns the path of the program."
  @spec executable() :: Path.t()
  def executable, do: Application.app_dir(:snakepit, "priv/native/snakepit_guardian")

  @doc "Runs a command with its options. Returns what it has written, and its exit status."
  @spec run([String.t()]) :: {String.t(), non_neg_integer()}
  def run(arguments) do
    case complete(arguments) do
      {:ok, arguments} -> execute(arguments, [])
      :nothing_yet -> {nothing_yet(), 0}
    end
  end

  @doc """
  Runs a command that writes to where the BEAM itself writes to: a terminal then has its width. Returns the exit status.
  """
  @spec attach([String.t()]) :: non_neg_integer()
  def attach(arguments) do
    case complete(arguments) do
      {:ok, arguments} ->
        {_nothing, status} = execute(arguments, [:nouse_stdio])
        status

      :nothing_yet ->
        IO.write(:stderr, nothing_yet())
        0
    end
  end

  @doc false
  # For the Mix tasks, whose exit status is that of the command.
  def task(command, arguments) do
    case attach([command | arguments]) do
      0 -> :ok
      status -> exit({:shutdown, status})
    end
  end

  defp nothing_yet, do: "snakepit: no run of this application has been recorded yet\n"

  defp complete(arguments) do
    check!(arguments)
    [command | options] = arguments

    cond do
      command not in @with_directory or named?(options) -> {:ok, arguments}
      directory = data_dir() -> {:ok, [command, "--data-dir", directory | options]}
      command == "doctor" -> {:ok, arguments}
      true -> :nothing_yet
    end
  end

  defp check!(arguments) do
    usable? = fn one -> is_binary(one) and not String.contains?(one, <<0>>) end

    unless is_list(arguments) and Enum.all?(arguments, usable?) and
             List.first(arguments) in @commands do
      raise ArgumentError,
            "expected a command (#{Enum.join(@commands, ", ")}) and its options as strings, got: " <>
              inspect(arguments)
    end
  end

  defp named?(options) do
    Enum.any?(options, fn one ->
      one == "--help" or one == "--data-dir" or String.starts_with?(one, "--data-dir=")
    end)
  end

  @doc "Returns the data directory of this BEAM's run, or the one that a start would use; `nil` if there is none yet."
  @spec data_dir() :: Path.t() | nil
  def data_dir do
    case Run.current() do
      %Run{data_dir: directory} -> directory
      nil -> Place.existing(Application.get_env(:snakepit, :data_dir))
    end
  end

  # In a process of its own: no message of the port is left to the caller.
  defp execute(arguments, options) do
    options = [:binary, :exit_status, :hide, args: arguments] ++ options
    run = fn -> {:spawn_executable, executable()} |> Port.open(options) |> collect([]) end
    {_pid, monitor} = spawn_monitor(fn -> exit({:shutdown, {:ran, run.()}}) end)

    receive do
      {:DOWN, ^monitor, :process, _pid, {:shutdown, {:ran, answer}}} -> answer
      {:DOWN, ^monitor, :process, _pid, reason} -> exit(reason)
    end
  end

  defp collect(port, output) do
    receive do
      {^port, {:data, data}} -> collect(port, [output | data])
      {^port, {:exit_status, status}} -> {IO.iodata_to_binary(output), status}
    end
  end
end
