defmodule Snakepit.Cmd do
  @moduledoc false

  # `Snakepit.cmd/3` and `Snakepit.run/3`: a program is run to its end and its output collected.

  alias Snakepit.{Error, OneShot, Options, Result, Telemetry}
  alias Snakepit.Cmd.Output
  alias Snakepit.OneShot.Schema

  # Linux numbers, from 1: what a shell adds to 128.
  @signals ~w(sighup sigint sigquit sigill sigtrap sigabrt sigbus sigfpe sigkill sigusr1 sigsegv
              sigusr2 sigpipe sigalrm sigterm sigstkflt sigchld sigcont sigstop sigtstp sigttin
              sigttou sigurg sigxcpu sigxfsz sigvtalrm sigprof sigwinch sigio sigpwr sigsys)a

  @limits [:timeout, :idle_timeout, :max_output]

  @schema OneShot.schema(
            [
              into: [
                type: {:custom, &__MODULE__.collectable?/1, "something to collect into"},
                default: "",
                doc: "what collects the output"
              ],
              lines: [
                type: {:integer, 1, :infinity, "bytes"},
                default: nil,
                doc: """
                collects whole lines, without their newlines, as `System.cmd/3` does; the number is how many bytes
                that one buffers at a time, and makes no difference here
                """
              ]
            ] ++
              Schema.stderr("`:capture` keeps all of it for the result of `Snakepit.run/3`, ") ++
              [
                stderr_to_stdout: [
                  type: :boolean,
                  default: nil,
                  shown: "`false`",
                  doc: "`true` is `stderr: :merge`"
                ],
                max_output: [
                  type: {:integer, 0, :infinity, "bytes"},
                  default: nil,
                  doc: "how many bytes it may write to what is read before it is killed"
                ]
              ] ++
              Schema.success(nil, "any") ++
              [
                parallelism: [
                  type: :boolean,
                  default: false,
                  doc: "makes no difference; `System.cmd/3` has it"
                ]
              ]
          )

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  def collectable?(into), do: Collectable.impl_for(into) != nil

  @doc false
  def cmd(program, args, opts) do
    own = options!(opts)

    if own.stderr == :capture do
      Options.mismatch!(
        :stderr,
        ":tail, :merge, :inherit or :null (what cmd/3 returns has no place for it; run/3 returns it)",
        :capture
      )
    end

    case execute(:cmd, program, args, own) do
      {%OneShot{exit: exit}, collected, _output} -> {collected, status(exit)}
      {limit, collected, _output} when limit in @limits -> {collected, limit}
      {:error, error} -> raise error
    end
  end

  @doc false
  def run(program, args, opts) do
    own = options!(opts)
    begun = System.monotonic_time(:millisecond)

    case execute(:run, program, args, own) do
      {%OneShot{exit: exit} = shot, collected, output} ->
        {:ok,
         %Result{
           status: exit.status,
           signal: exit.signal,
           stdout: collected,
           stderr: Output.errors(output, shot.tail),
           duration_ms: System.monotonic_time(:millisecond) - begun,
           usage: Map.take(exit, [:user_us, :system_us, :max_rss_kb])
         }}

      {limit, _collected, output} when limit in @limits ->
        {:error, %Error{operation: :run, reason: limit, output: Output.tail(output)}}

      {:error, error} ->
        {:error, error}
    end
  end

  defp options!(opts) do
    own = Options.validate!(opts, @schema)
    %{own | stderr: Schema.error!(own)}
  end

  defp execute(operation, program, args, own) do
    command = OneShot.command([program | args], own)

    Telemetry.span([:snakepit, :command], %{operation: operation, program: program}, fn ->
      ended = collected(operation, command, own)
      {ended, outcome(ended)}
    end)
  end

  defp outcome({%OneShot{exit: exit}, _collected, _output}),
    do: Map.take(exit, [:status, :signal])

  defp outcome({:error, error}), do: %{error: error}
  defp outcome({limit, _collected, _output}), do: %{limit: limit}

  defp collected(operation, command, own) do
    # Before there is a process: opening it may fail.
    output = Output.new(own)

    case OneShot.start(command, operation, own) do
      {:ok, shot} -> collect(shot, output, own)
      {:error, error} -> give_up(output, error)
    end
  end

  defp collect(shot, output, own) do
    {ended, output} = read(shot, output)
    # Order: first, because collecting may take long or fail.
    discard(ended, shot)
    conclude(ended, output, own.success)
  catch
    kind, reason ->
      OneShot.discard(shot)
      Output.halt(output)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp discard(%OneShot{} = ended, _shot), do: OneShot.discard(ended)
  defp discard(_limit_or_error, shot), do: OneShot.discard(shot)

  defp read(shot, output) do
    case OneShot.next(shot) do
      {:data, stream, data, shot} ->
        with {:ok, output} <- Output.add(output, stream, data), do: read(shot, output)

      {:closed, _stream, shot} ->
        read(shot, output)

      {:exited, shot} ->
        {shot, output}

      {:error, error, _shot} ->
        {{:error, error}, output}

      {limit, _shot} ->
        {limit, output}
    end
  end

  # What ended by itself may have failed all the same.
  defp conclude(%OneShot{exit: exit, tail: tail} = shot, output, success) do
    if success == nil or (exit.signal == nil and exit.status in success) do
      {shot, Output.done(output), output}
    else
      give_up(output, %{OneShot.failure(shot) | output: Output.last_words(output, tail)})
    end
  end

  defp conclude({:error, error}, output, _success),
    do: give_up(output, %{error | output: Output.tail(output)})

  defp conclude(limit, output, _success), do: {limit, Output.done(output), output}

  defp give_up(output, error) do
    Output.halt(output)
    {:error, error}
  end

  defp status(%{status: status}) when status != nil, do: status

  defp status(%{signal: signal}) do
    case Enum.find_index(@signals, &(&1 == signal)) do
      nil when is_integer(signal) -> 128 + signal
      index -> 128 + index + 1
    end
  end
end
