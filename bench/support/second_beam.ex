defmodule Snakepit.Bench.SecondBeam do
  @moduledoc """
  Another BEAM, with Snakepit and a data directory of its own, that does what it is told.

  It ends when its standard input does, so it cannot outlive this one.
  """

  alias Snakepit.Test.BeamPort

  @enforce_keys [:port, :os_pid]
  defstruct [:port, :os_pid]

  @type t :: %__MODULE__{}

  @patience_ms 60_000
  @libraries ~w(verdict bench turns operations spawning ports)

  @doc "Runs `fun` while it is there."
  @spec with_beam((t() -> value)) :: value when value: term()
  def with_beam(fun) do
    Snakepit.Bench.with_directory(fn directory ->
      beam = start(directory)

      try do
        fun.(beam)
      after
        stop(beam.port)
      end
    end)
  end

  @doc "Evaluates code there. Gives its value, which must be one that can be written down."
  @spec run(t(), String.t()) :: term()
  def run(beam, code) do
    BeamPort.tell(beam.port, code)
    BeamPort.value(beam.port)
  end

  defp start(directory) do
    libraries = for name <- @libraries, do: Path.join(__DIR__, "#{name}.ex")
    port = BeamPort.open([data_dir: directory], libraries: libraries)
    # One that is killed closes its port when it is written to, which is no reason to end.
    Process.unlink(port)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    :started = BeamPort.value(port)
    %__MODULE__{port: port, os_pid: os_pid}
  end

  @doc "Stops the BEAM behind a port of `BeamPort`'s, and waits until it is gone."
  @spec stop(port()) :: :ok
  # Whether it was killed or not: its end of file and its exit status come from the same place.
  def stop(port) do
    ask_to_stop(port)
    await_end(port)
  end

  @doc "Waits until the BEAM behind a port is gone, for whatever reason."
  @spec await_end(port()) :: :ok
  def await_end(port), do: await_end(port, System.monotonic_time(:millisecond) + @patience_ms)

  # The port of one that was killed closes at any moment, so looking first whether it is open would
  # say nothing about the moment after.
  defp ask_to_stop(port) do
    BeamPort.tell(port, "System.stop()")
  rescue
    ArgumentError -> :closed
  end

  defp await_end(port, deadline) do
    receive do
      {^port, {:exit_status, _status}} -> :ok
      {^port, {:data, _value}} -> await_end(port, deadline)
    after
      100 ->
        cond do
          Port.info(port) == nil -> :ok
          System.monotonic_time(:millisecond) > deadline -> raise "the second BEAM does not end"
          true -> await_end(port, deadline)
        end
    end
  end
end
