defmodule Snakepit.OneShot do
  @moduledoc false

  # A process that the caller itself owns, from start to end: what `Snakepit.Cmd` and
  # `Snakepit.OutputStream` are made of.
  #
  # There is no BEAM process in between. The caller's death closes the connection and ends the tree, as
  # for any owner; and the pipe is read by the caller, so a caller that does not read makes the program wait.

  alias Snakepit.{Command, Error, Guardian, Launch, Options, Pipe}

  # What the tree of a program that has ended, or is interrupted, gets to end by itself.
  @stop_timeout 2_000

  @own [
    input: [type: :iodata, default: nil, doc: "what the program reads; without it, nothing"],
    stderr_to_stdout: [
      type: :boolean,
      default: false,
      doc: "whether errors are part of the output; otherwise only `Snakepit.run/3` returns them"
    ]
  ]

  # The program and the streams are the one-shot's own business.
  @command Command.Schema.schema()
           |> Keyword.drop([:cmd, :stdio, :lifeline])
           |> Options.put_defaults(stop_timeout: @stop_timeout)

  @enforce_keys [:id, :operation, :child, :guardian, :pipes]
  defstruct [:id, :operation, :child, :guardian, :pipes, :feeder, gone?: false]

  @type t :: %__MODULE__{
          id: String.t(),
          operation: atom(),
          child: Guardian.child(),
          guardian: reference(),
          pipes: {Pipe.t() | nil, Pipe.t()},
          feeder: pid() | nil,
          gone?: boolean()
        }

  @doc "The options of those that have the options `own`: these, those of all, and the command's."
  @spec schema(Options.schema()) :: Options.schema()
  def schema(own), do: own ++ @own ++ @command

  @doc "The command of a program and of options that are checked."
  @spec command([String.t()], map()) :: Command.t()
  def command(argv, own) do
    Options.check!(argv, Command.Schema.schema()[:cmd][:type], :cmd)
    # What is not the command's is left out.
    struct(Command, Map.put(own, :cmd, argv))
  end

  @doc "Starts a command for `operation`, which errors name."
  @spec start(Command.t(), atom(), map()) :: {:ok, t()} | {:error, Error.t()}
  def start(command, operation, own) do
    kind = if own[:stderr_to_stdout], do: :stream, else: :pipe
    id = Launch.unique_id(operation)
    stdio = {kind, {:pipes, own[:input] != nil}}
    plan = %{id: id, command: command, stdio: stdio, lifeline: false}

    with {:ok, launched} <- Launch.run(plan) do
      %{child: child, guardian: guardian, stdio: {input, _output} = pipes} = launched

      {:ok,
       %__MODULE__{
         id: id,
         operation: operation,
         child: child,
         guardian: guardian,
         pipes: pipes,
         feeder: feed(input, own[:input])
       }}
    end
  end

  # Input is written by a process of its own: a caller that writes to a program which waits for its output to be
  # read would deadlock.
  defp feed(nil, nil), do: nil

  defp feed(pipe, input) do
    owner = self()

    spawn(fn ->
      monitor = Process.monitor(owner)
      Pipe.write(pipe, input, monitor)
      Pipe.close(pipe)
    end)
  end

  @doc "Returns the next piece of output, `:closed` when there is none any more, or `:timeout`."
  @spec read(t(), timeout()) :: {:ok, binary()} | :closed | :timeout
  def read(%{pipes: {_input, output}}, timeout), do: Pipe.read(output, timeout)

  @doc """
  Returns how the process ended and the end of its standard error, once its whole tree is gone; `:timeout`
  if it has not ended by then.
  """
  @spec await_gone(t(), timeout()) ::
          {:exited, map(), binary()} | :timeout | {:error, Error.t()}
  def await_gone(%{child: %{id: id}, guardian: guardian} = shot, timeout) do
    receive do
      {Guardian, ^id, {:exited, exit, tail}} ->
        await_tree_gone(shot, {:exited, exit, tail}, timeout)

      {Guardian, ^id, {:survivors, os_pids}} ->
        {:error, survivors(shot, os_pids)}

      {Guardian, ^id, :guardian_down} ->
        {:error, guardian_down(shot)}

      {:DOWN, ^guardian, :process, _server, _reason} ->
        {:error, guardian_down(shot)}
    after
      timeout -> :timeout
    end
  end

  # The guardian may be killed while it ends the rest: then nobody says that it is gone. What is left
  # when the time is up is killed; the program itself was in time.
  defp await_tree_gone(%{child: %{id: id}, guardian: guardian} = shot, exited, timeout) do
    receive do
      {Guardian, ^id, {:tree_gone, _killed}} -> exited
      {Guardian, ^id, {:survivors, os_pids}} -> {:error, survivors(shot, os_pids)}
      {Guardian, ^id, :guardian_down} -> {:error, guardian_down(shot)}
      {:DOWN, ^guardian, :process, _server, _reason} -> {:error, guardian_down(shot)}
    after
      timeout -> with :ok <- Launch.kill(shot.child), do: exited
    end
  end

  defp survivors(shot, os_pids),
    do: %Error{operation: shot.operation, reason: :survivors, os_pids: os_pids}

  defp guardian_down(shot), do: %Error{operation: shot.operation, reason: :guardian_down}

  @doc """
  Lets go of a process, which is killed if it has not ended. One whose tree is gone needs no end, and no
  message of it is left.
  """
  @spec discard(t()) :: :ok | {:error, Error.t()}
  def discard(shot) do
    unless shot.gone?, do: Launch.kill(shot.child)
    Process.demonitor(shot.guardian, [:flush])

    # Order: who feeds it waits for room in a pipe that nobody will report once it is closed.
    if shot.feeder, do: Process.exit(shot.feeder, :kill)
    Guardian.disconnect(shot.pipes)
    Launch.forget(shot.id, shot.child)
  end
end
