defmodule Snakepit.Cmd do
  @moduledoc false

  # `Snakepit.cmd/3` and `Snakepit.run/3`: a program is run to its end and its output collected.

  alias Snakepit.{Error, OneShot, Options, Result, Telemetry}
  alias Snakepit.Output.Tail

  # Linux numbers, from 1: what a shell adds to 128.
  @signals ~w(sighup sigint sigquit sigill sigtrap sigabrt sigbus sigfpe sigkill sigusr1 sigsegv
              sigusr2 sigpipe sigalrm sigterm sigstkflt sigchld sigcont sigstop sigtstp sigttin
              sigttou sigurg sigxcpu sigxfsz sigvtalrm sigprof sigwinch sigio sigpwr sigsys)a

  # What an error shows of the output.
  @tail_bytes 4_000

  @schema OneShot.schema(
            into: [
              type: {:custom, &__MODULE__.collectable?/1, "something to collect into"},
              default: "",
              doc: "what collects the output"
            ],
            timeout: [
              type: :timeout,
              default: :infinity,
              doc: "how many milliseconds it may take; then it is killed"
            ],
            max_output: [
              type: {:integer, 0, :infinity, "bytes"},
              default: nil,
              doc: "how many bytes it may write before it is killed"
            ]
          )

  defstruct [:acc, :collector, size: 0, tail: nil]

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  def collectable?(into), do: Collectable.impl_for(into) != nil

  @doc false
  def cmd(program, args, opts) do
    case execute(:cmd, program, args, opts) do
      {{:exited, exit, _stderr}, collected, _tail} -> {collected, status(exit)}
      {limit, collected, _tail} when limit in [:timeout, :max_output] -> {collected, limit}
      {:error, error} -> raise error
    end
  end

  @doc false
  def run(program, args, opts) do
    begun = System.monotonic_time(:millisecond)

    case execute(:run, program, args, opts) do
      {{:exited, exit, stderr}, collected, _tail} ->
        {:ok,
         %Result{
           status: exit.status,
           signal: exit.signal,
           stdout: collected,
           stderr: stderr,
           duration_ms: System.monotonic_time(:millisecond) - begun,
           usage: Map.take(exit, [:user_us, :system_us, :max_rss_kb])
         }}

      {limit, _collected, tail} when limit in [:timeout, :max_output] ->
        {:error, %Error{operation: :run, reason: limit, output: Tail.content(tail)}}

      {:error, error} ->
        {:error, error}
    end
  end

  defp execute(operation, program, args, opts) do
    own = Options.validate!(opts, @schema)
    command = OneShot.command([program | args], own)

    Telemetry.span([:snakepit, :command], %{operation: operation, program: program}, fn ->
      ended = execute(operation, command, own)
      {ended, outcome(ended)}
    end)
  end

  defp outcome({{:exited, exit, _stderr}, _collected, _tail}),
    do: Map.take(exit, [:status, :signal])

  defp outcome({:error, error}), do: %{error: error}
  defp outcome({limit, _collected, _tail}), do: %{limit: limit}

  defp execute(operation, command, own) do
    # Before there is a process: opening it may fail.
    {acc, collector} = Collectable.into(own[:into])
    state = %__MODULE__{acc: acc, collector: collector, tail: Tail.new(@tail_bytes)}

    case OneShot.start(command, operation, own) do
      {:ok, shot} -> collect(shot, state, own)
      {:error, error} -> give_up(state, error)
    end
  end

  defp collect(shot, state, own) do
    deadline = deadline(own[:timeout])

    try do
      {ended, state} = read(shot, state, deadline, own[:max_output] || :infinity)
      ended = if ended == :closed, do: OneShot.await_gone(shot, left(deadline)), else: ended
      # Order: first, because collecting may take long or fail.
      OneShot.discard(%{shot | gone?: match?({:exited, _exit, _stderr}, ended)})
      conclude(ended, state)
    catch
      kind, reason ->
        OneShot.discard(shot)
        state.collector.(state.acc, :halt)
        :erlang.raise(kind, reason, __STACKTRACE__)
    end
  end

  defp read(shot, state, deadline, max) do
    case OneShot.read(shot, left(deadline)) do
      {:ok, data} when state.size + byte_size(data) > max ->
        {:max_output, add(state, binary_part(data, 0, max - state.size))}

      {:ok, data} ->
        read(shot, add(state, data), deadline, max)

      ended ->
        {ended, state}
    end
  end

  defp add(state, data) do
    acc = state.collector.(state.acc, {:cont, data})
    %{state | acc: acc, size: state.size + byte_size(data), tail: Tail.add(state.tail, data)}
  end

  defp conclude({:error, error}, state),
    do: give_up(state, %{error | output: Tail.content(state.tail)})

  defp conclude(ended, state), do: {ended, state.collector.(state.acc, :done), state.tail}

  defp give_up(state, error) do
    state.collector.(state.acc, :halt)
    {:error, error}
  end

  defp status(%{status: status}) when status != nil, do: status

  defp status(%{signal: signal}) do
    case Enum.find_index(@signals, &(&1 == signal)) do
      nil when is_integer(signal) -> 128 + signal
      index -> 128 + index + 1
    end
  end

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: System.monotonic_time(:millisecond) + timeout

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - System.monotonic_time(:millisecond), 0)
end
