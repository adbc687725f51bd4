defmodule Snakepit.Dashboard.Runs do
  @moduledoc false

  # Runs that have ended, and what the guardian of each has written down about its end. That needs the data directory
  # alone, and no application that has started.

  alias Snakepit.{DataDir, Native, RunID}
  alias Snakepit.Ledger.{History, RunDirectory}

  @shown [
    :run_id,
    :node,
    :beam_pid,
    :started_at,
    :ended_at,
    :state,
    :terminated_by,
    :clean_shutdown,
    :found,
    :killed,
    :gone,
    :ambiguous,
    :usage
  ]
  # What a page can show, and a guardian that ended a fork bomb has seen more.
  @most_processes 2_000
  @log_bytes 16_384

  @doc "Returns the runs of a data directory that have ended, newest first, and those that are not closed."
  @spec list(Path.t()) :: %{data_dir: Path.t(), runs: [map()], open: [String.t()]}
  def list(data_dir) do
    open =
      for {id, _directory, files} <- DataDir.runs(data_dir),
          not RunDirectory.closed?(files),
          do: id

    %{data_dir: data_dir, runs: data_dir |> History.list() |> Enum.map(&shown/1), open: open}
  end

  @doc "Returns a run with the timeline of its end; `nil` if there is none of that id."
  @spec fetch(Path.t(), String.t()) :: map() | nil
  def fetch(data_dir, id) do
    with true <- RunID.valid?(id),
         {_id, directory, _files} <- List.keyfind(DataDir.runs(data_dir), id, 0) do
      record = Enum.find(History.list(data_dir), %{run_id: id}, &(&1.run_id == id))

      record
      |> shown()
      |> Map.merge(%{
        timeline: timeline(directory),
        log: log(Path.join(directory, "guardian.log"))
      })
    else
      _none -> nil
    end
  end

  defp shown(record), do: Map.take(record, @shown)

  defp timeline(directory) do
    with %{} = obituary <- Native.obituary_read(directory) do
      processes =
        for process <- Enum.sort_by(obituary.processes, & &1.after_ms) do
          %{
            worker_id: process.worker_id,
            os_pid: process.os_pid,
            killed: process.killed,
            after_ms: process.after_ms,
            cpu_us: process.usage.user_us + process.usage.system_us,
            max_rss_kb: process.usage.max_rss_kb
          }
        end

      %{
        detected_at: obituary.detected_at,
        detected_by: obituary.detected_by,
        duration_ms: obituary.duration_ms,
        survivors: obituary.survivors,
        processes: Enum.take(processes, @most_processes),
        omitted: max(length(processes) - @most_processes, 0)
      }
    end
  end

  # The end of it.
  defp log(path) do
    with {:ok, file} <- :file.open(path, [:read, :raw, :binary]) do
      {:ok, size} = :file.position(file, :eof)
      read = :file.pread(file, max(size - @log_bytes, 0), @log_bytes)
      :file.close(file)
      with {:ok, text} <- read, do: text, else: (_empty -> nil)
    else
      {:error, _none} -> nil
    end
  end
end
