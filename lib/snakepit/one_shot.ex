defmodule Snakepit.OneShot do
  @moduledoc false

  # A process that the caller itself owns, from start to end: what `Snakepit.Cmd` and
  # `Snakepit.OutputStream` are made of.
  #
  # There is no BEAM process in between. The caller's death closes the pipes and ends the tree, as for any
  # owner; and the pipes are read by the caller, so a caller that does not read makes the program wait.

  alias Snakepit.{Command, Error, Guardian, Launch, Options, PipeSet, Stdio}
  alias Snakepit.OneShot.{Feeder, Schema}

  # Every so many pieces of output that are there without a wait, what else there is to hear is looked for: a program
  # that never makes its reader wait must not keep it from hearing that the input has failed.
  @hear_each 64
  # The most that a pipe holds, unless an administrator allows more.
  @pipe_bytes 1_048_576

  @enforce_keys [:id, :operation, :owner, :child, :guardian, :streams, :pipes, :hearing, :limits]
  defstruct @enforce_keys ++
              [
                :feeder,
                :outcome,
                :exit,
                pieces: 0,
                left_over: @pipe_bytes,
                tail: "",
                gone?: false
              ]

  @typedoc """
  `outcome` is that of the feeder, once it is known, and `exit` and `tail` are how the process has ended and the end of
  its standard error, if the guardian keeps that. `gone?` is the whole tree.
  """
  @type t :: %__MODULE__{
          id: String.t(),
          operation: atom(),
          owner: pid(),
          child: Guardian.child(),
          guardian: reference(),
          streams: Stdio.Ends.t(),
          pipes: PipeSet.t(),
          hearing: PipeSet.hearing(),
          limits: %{deadline: integer() | :infinity, idle: timeout()},
          feeder: Feeder.t() | nil,
          outcome: Feeder.outcome() | nil,
          exit: map() | nil,
          pieces: non_neg_integer(),
          left_over: integer(),
          tail: binary(),
          gone?: boolean()
        }

  @type limit :: :timeout | :idle_timeout
  @type stream :: :stdout | :stderr

  @doc "The options of those that have the options `own`: these, those of all, and the command's."
  @spec schema(Options.schema()) :: Options.schema()
  defdelegate schema(own), to: Schema, as: :complete

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
    id = Launch.unique_id(operation)
    stdio = %Stdio{input: input(own.input), output: :pipe, error: error(own.stderr)}
    plan = %{id: id, command: %{command | stdio: stdio}, lifeline: false}
    limits = %{deadline: after_ms(now(), own.timeout), idle: own.idle_timeout}

    with {:ok, %Launch{child: child, guardian: guardian, streams: streams}} <- Launch.run(plan) do
      feeder = if streams.input, do: Feeder.start(streams.input, own.input)

      {:ok,
       %__MODULE__{
         id: id,
         operation: operation,
         owner: self(),
         child: child,
         guardian: guardian,
         streams: streams,
         pipes: PipeSet.new(stdout: streams.output, stderr: streams.error),
         hearing: hearing(child, guardian, feeder),
         limits: limits,
         feeder: feeder
       }}
    end
  end

  defp input(nil), do: :null
  defp input(_given), do: :pipe

  defp error(:capture), do: :pipe
  defp error(:merge), do: :merged
  defp error(other), do: other

  defp hearing(child, guardian, feeder) do
    of_feeder =
      if feeder, do: %{feeder.reference => :feeder, feeder.monitor => :feeder}, else: %{}

    %{child: child.id, tag: Feeder, references: Map.put(of_feeder, guardian, :server)}
  end

  @doc """
  Returns what comes next: a piece of output, that one of the streams has ended, or that the program has ended and
  nothing of its tree is left. Raises what the input has raised.
  """
  @spec next(t()) ::
          {:data, stream(), binary(), t()}
          | {:closed, stream(), t()}
          | {:exited, t()}
          | {limit(), t()}
          | {:error, Error.t(), t()}
  def next(%{owner: owner} = shot) when owner != self(),
    do: {:error, %Error{operation: shot.operation, reason: :not_owner}, shot}

  def next(%{gone?: true} = shot), do: left_over(shot)

  def next(%{pieces: pieces} = shot) when pieces >= @hear_each do
    case PipeSet.hear(shot.hearing) do
      {:heard, who, word} -> heard(shot, who, word)
      :timeout -> next(%{shot | pieces: 0})
    end
  end

  def next(shot) do
    now = now()
    idle = if shot.exit, do: :infinity, else: after_ms(now, shot.limits.idle)
    # An integer is less than an atom.
    case read(shot, now, min(shot.limits.deadline, idle)) do
      {:timeout, shot} -> limit(shot)
      {{:heard, who, word}, shot} -> heard(shot, who, word)
      {found, shot} -> found(found, shot)
    end
  end

  # A program that always has output must not outlive its time either.
  defp read(%{limits: %{deadline: deadline}} = shot, now, _until) when now >= deadline,
    do: {:timeout, shot}

  defp read(shot, _now, until) do
    {read, pipes} = PipeSet.read(shot.pipes, shot.hearing, until)
    {read, %{shot | pipes: pipes}}
  end

  defp found({:data, stream, data}, shot),
    do: {:data, stream, data, %{shot | pieces: shot.pieces + 1}}

  defp found({:closed, stream}, shot), do: {:closed, stream, shot}

  # The guardian may be killed while it ends the rest: then nobody says that it is gone. What is left when the time
  # is up is killed; the program itself was in time.
  defp limit(%{exit: exit} = shot) when exit != nil do
    case Launch.kill(shot.child) do
      :ok -> next(%{shot | gone?: true})
      {:error, error} -> {:error, error, shot}
    end
  end

  defp limit(shot) do
    if now() >= shot.limits.deadline, do: {:timeout, shot}, else: {:idle_timeout, shot}
  end

  # What the tree had written is in the pipes. They end there, also if somebody outside of the tree holds them open;
  # and that one may write for ever.
  defp left_over(shot) do
    case PipeSet.read_now(shot.pipes) do
      {{:data, _stream, data} = found, pipes} when shot.left_over > 0 ->
        found(found, %{shot | pipes: pipes, left_over: shot.left_over - byte_size(data)})

      {{:closed, _stream} = found, pipes} ->
        found(found, %{shot | pipes: pipes})

      {_nothing, %{pipes: [{stream, _pipe, _expected?} | pipes]}} ->
        {:closed, stream, %{shot | pipes: %PipeSet{pipes: pipes}}}

      {:nothing, %{pipes: []}} ->
        {:exited, settle(shot)}
    end
  end

  # Nobody reads any more what has not been read by now.
  defp settle(%{feeder: nil} = shot), do: shot
  defp settle(%{outcome: nil} = shot), do: fed(shot, Feeder.stop(shot.feeder))
  defp settle(shot), do: shot

  defp heard(shot, :guardian, {:exited, exit, tail}),
    do: next(%{shot | exit: exit, tail: tail})

  defp heard(shot, :guardian, {:tree_gone, _killed}), do: next(%{shot | gone?: true})

  defp heard(shot, :guardian, {:survivors, os_pids}) do
    error = %Error{operation: shot.operation, reason: :survivors, os_pids: os_pids}
    {:error, error, shot}
  end

  defp heard(shot, who, _down) when who in [:guardian, :server],
    do: {:error, %Error{operation: shot.operation, reason: :guardian_down}, shot}

  # Somebody has killed it, or something that the enumerable has linked to it has.
  defp heard(%{outcome: nil} = shot, :feeder, {:down, reason}),
    do: fed(shot, {:failed, :exit, reason, []})

  defp heard(shot, :feeder, {:down, _known}), do: next(shot)
  defp heard(shot, :feeder, outcome), do: shot |> fed(outcome) |> next()

  defp fed(_shot, {:failed, kind, reason, stack}), do: :erlang.raise(kind, reason, stack)
  defp fed(shot, outcome), do: %{shot | outcome: outcome}

  @doc "The error for a program that has ended, and whose status is no success."
  @spec failure(t()) :: Error.t()
  def failure(%{exit: %{signal: nil, status: status}} = shot),
    do: %Error{operation: shot.operation, reason: :exit_status, status: status}

  def failure(%{exit: %{signal: signal}} = shot),
    do: %Error{operation: shot.operation, reason: :exit_signal, signal: signal}

  @doc """
  Lets go of a process, which is killed if it has not ended. One whose tree is gone needs no end, and no
  message of it is left.
  """
  @spec discard(t()) :: :ok | {:error, Error.t()}
  def discard(shot) do
    unless shot.gone?, do: Launch.kill(shot.child)
    # A monitor can be removed by its process only.
    if shot.owner == self(), do: forget(shot)
    Stdio.close(shot.streams)
    Launch.forget(shot.id, shot.child)
  end

  # Order: who feeds it waits for room in a pipe that nobody will report once it is closed.
  defp forget(shot) do
    Process.demonitor(shot.guardian, [:flush])

    cond do
      shot.feeder == nil -> :ok
      shot.outcome == nil -> Feeder.stop(shot.feeder)
      true -> Feeder.forget(shot.feeder)
    end
  end

  defp after_ms(_now, :infinity), do: :infinity
  defp after_ms(now, timeout), do: now + timeout

  defp now, do: System.monotonic_time(:millisecond)
end
