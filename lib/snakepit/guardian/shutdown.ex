defmodule Snakepit.Guardian.Shutdown do
  @moduledoc false

  # The end of a guardian: waits until it has ended everything, and sweeps up what it could not end.

  require Logger

  alias Snakepit.{Error, Native, Run}
  alias Snakepit.Cleanup.Strays
  alias Snakepit.Guardian.Wire

  # What the kernel may take to carry out SIGKILL.
  @kill_wait_ms 5_000

  @doc """
  Waits for a guardian that was asked to end everything. Sweeps up if the guardian dies meanwhile, or sends nothing for
  so many milliseconds.
  """
  @spec await_all_gone(port(), Run.t(), non_neg_integer()) :: :ok
  def await_all_gone(port, run, timeout_ms) do
    receive do
      {^port, {:exit_status, _status}} ->
        sweep(run)

      {:EXIT, ^port, _reason} ->
        sweep(run)

      {^port, {:data, frame}} ->
        case Wire.decode(frame) do
          {:ok, {:all_gone, _stopped, _killed, []}} -> :ok
          {:ok, {:all_gone, _stopped, _killed, left}} -> log_survivors(left)
          _other -> await_all_gone(port, run, timeout_ms)
        end
    after
      timeout_ms ->
        Logger.error("Snakepit's guardian does not answer; its processes are killed without it")
        sweep(run)
    end
  end

  @doc """
  Reads the obituary of a guardian that has ended, which names the processes that are left. Sweeps up if there is none.
  """
  @spec hear_last_word(Run.t()) :: :ok
  def hear_last_word(run) do
    case Native.obituary_read(run.directory) do
      %{survivors: []} -> :ok
      %{survivors: left} -> log_survivors(left)
      nil -> sweep(run)
    end
  end

  defp log_survivors(os_pids) do
    Logger.error(
      "Snakepit: processes survived the stop of the application: #{Error.pids(os_pids)}"
    )
  end

  @doc "Kills every process that carries the markers or the lineage of the run, or that it has recorded."
  @spec sweep(Run.t()) :: :ok
  def sweep(run),
    do: run.id |> Native.run_sweep(Strays.noted(run), 0, @kill_wait_ms) |> log_sweep()

  # For tests: no process survives SIGKILL, and no process table is unreadable, because one asks.
  @doc false
  def log_sweep({:ok, %{survivors: []}}), do: :ok

  def log_sweep({:ok, %{survivors: left}}),
    do:
      Logger.error(
        "Snakepit: processes still there after the sweep with SIGKILL: #{inspect(left)}"
      )

  def log_sweep({:error, reason}),
    do:
      Logger.error(
        "Snakepit cannot search /proc for processes, the sweep failed: #{inspect(reason)}"
      )
end
