defmodule Snakepit.OneShot.Feeder do
  @moduledoc false

  # Writes what a program reads, from a process of its own: a caller that writes to a program which waits for its
  # output to be read would wait without end. An enumerable is asked for the next piece when the program has taken
  # the last one, and runs in this process; so a program that is streamed into another one belongs to it.

  alias Snakepit.Pipe

  # How long an enumerable may take to notice that it is not wanted any more, and to let go of what it holds.
  @patience_ms 100

  @enforce_keys [:pid, :pipe, :monitor, :reference]
  defstruct [:pid, :pipe, :monitor, :reference]

  @type t :: %__MODULE__{
          pid: pid(),
          pipe: Pipe.t(),
          monitor: reference(),
          reference: reference()
        }

  @typedoc """
  `:ok` when the program has been given all of it, `:unread` when it did not want all of it. The enumerable may fail.
  """
  @type outcome :: :ok | :unread | {:failed, :error | :exit | :throw, term(), list()}

  @doc "Whether a value can be what a program reads."
  def input?(input) when is_list(input) or is_binary(input),
    do: Snakepit.Options.Type.verdict(:iodata, input)

  def input?(input) when is_function(input), do: is_function(input, 2)
  def input?(input), do: Enumerable.impl_for(input) != nil

  @doc """
  Feeds a pipe that the caller owns, which gets `{Snakepit.OneShot.Feeder, reference, outcome}`, and the end of the
  process by the monitor.
  """
  @spec start(Pipe.t(), Enumerable.t()) :: t()
  def start(pipe, input) do
    owner = self()
    reference = make_ref()
    # As for a task, for libraries that look up on whose behalf they are called.
    callers = [owner | Process.get(:"$callers", [])]

    {pid, monitor} =
      spawn_monitor(fn ->
        Process.put(:"$callers", callers)
        outcome = feed(pipe, input, owner)
        # Order: told before the program can notice, and end.
        send(owner, {__MODULE__, reference, outcome})
        # What was cut short must not look complete to the program.
        if outcome in [:ok, :unread], do: Pipe.close(pipe)
      end)

    %__MODULE__{pid: pid, pipe: pipe, monitor: monitor, reference: reference}
  end

  @doc "Ends it, and returns the outcome if there has been one. No message of it is left."
  @spec stop(t()) :: outcome()
  def stop(%__MODULE__{} = feeder) do
    forget(feeder)
    with nil <- told(feeder), do: interrupt(feeder)
  end

  defp told(%{reference: reference}) do
    receive do
      {__MODULE__, ^reference, outcome} -> outcome
    after
      0 -> nil
    end
  end

  defp interrupt(%{pid: pid} = feeder) do
    monitor = Process.monitor(pid)
    # Of an orderly end an enumerable hears, and of being killed it does not.
    Pipe.interrupt(feeder.pipe, pid)

    receive do
      {:DOWN, ^monitor, :process, _pid, _reason} -> :ok
    after
      @patience_ms -> kill(pid, monitor)
    end

    # What fails when it is not wanted any more is no failure.
    if told(feeder) == :ok, do: :ok, else: :unread
  end

  defp kill(pid, monitor) do
    Process.exit(pid, :kill)

    receive do
      {:DOWN, ^monitor, :process, _pid, _reason} -> :ok
    end
  end

  @doc "Is for one whose outcome is known: it ends by itself."
  @spec forget(t()) :: true
  def forget(feeder), do: Process.demonitor(feeder.monitor, [:flush])

  defp feed(pipe, input, owner) when is_list(input) or is_binary(input),
    do: outcome(Pipe.write(pipe, input, Process.monitor(owner)))

  defp feed(pipe, input, owner) do
    end_with(owner)
    monitor = Process.monitor(owner)

    try do
      Enum.reduce_while(input, :ok, fn data, :ok ->
        case outcome(Pipe.write(pipe, iodata!(data), monitor)) do
          :ok -> {:cont, :ok}
          :unread -> {:halt, :unread}
        end
      end)
    catch
      kind, reason -> {:failed, kind, reason, __STACKTRACE__}
    end
  end

  defp outcome(:ok), do: :ok
  defp outcome({:error, _nobody_reads}), do: :unread

  defp iodata!(data) when is_binary(data) or is_list(data), do: data

  defp iodata!(other),
    do: raise(ArgumentError, "expected :input to consist of iodata, got: #{inspect(other)}")

  # While the enumerable runs, nobody here hears of the end of the owner. There is no link: the owner may trap exits,
  # and would get messages.
  defp end_with(owner) do
    feeder = self()

    spawn(fn ->
      owner = Process.monitor(owner)
      monitor = Process.monitor(feeder)

      receive do
        {:DOWN, ^owner, :process, _pid, _reason} -> Process.exit(feeder, :kill)
        {:DOWN, ^monitor, :process, _pid, _reason} -> :ok
      end
    end)
  end
end
