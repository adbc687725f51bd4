defmodule Snakepit.LegacyLedger do
  @moduledoc false

  # Ledgers of the earlier Snakepit: `process_registry_<node>.dets`, workers by id, with a pid and no
  # identity. Read once and set aside. A pid alone says nothing, so a process is ended only if its
  # command line carries the run id of the entry, and the BEAM that wrote the entry is gone.

  require Logger

  alias Snakepit.{OSProcess, ProcessKiller, RunID}
  alias Snakepit.Ledger.{Salvage, Table}

  @pattern "process_registry_*.dets"

  @doc "Ends what the ledgers in a directory speak of, and sets them aside."
  @spec retire(Path.t()) :: :ok
  def retire(data_dir) do
    for path <- Path.wildcard(Path.join(data_dir, @pattern)) do
      ended = path |> entries() |> Enum.filter(&orphan?/1) |> Enum.map(&stop/1)
      aside = Table.set_aside(path, "retired")
      Logger.info("Snakepit: #{length(ended)} processes of #{path} ended; set aside as #{aside}")
    end

    :ok
  end

  defp entries(path) do
    # Its entries hold pids, and those the names of nodes, which are atoms: a bounded number, once.
    case Salvage.read(path, []) do
      {:ok, found} -> Enum.flat_map(found.objects ++ found.leftovers, &entry/1)
      {:error, _no_table} -> []
    end
  end

  # `{worker_id, map}`, or a tuple of worker id, owner, pid, fingerprint, run id and time.
  defp entry({_worker_id, %{} = fields}) do
    process(fields[:process_pid], fields[:beam_run_id] || fields[:run_id], fields[:beam_os_pid])
  end

  defp entry({_worker_id, _owner, os_pid, _fingerprint, run_id, _registered_at}),
    do: process(os_pid, run_id, nil)

  defp entry(_other), do: []

  defp process(os_pid, run_id, beam_pid) when is_integer(os_pid) and is_binary(run_id) do
    case OSProcess.lookup(os_pid) do
      {:ok, process} -> [%{process: process, run_id: run_id, beam_pid: beam_pid}]
      {:error, _gone} -> []
    end
  end

  defp process(_os_pid, _run_id, _beam_pid), do: []

  # Looked up first, asked afterwards: what the command line says is said of the process that is held.
  defp orphan?(%{process: process, run_id: run_id, beam_pid: beam_pid}) do
    carries? =
      case OSProcess.info(process) do
        {:ok, info} -> RunID.extract_from_command(info.arguments) == {:ok, run_id}
        {:error, _gone} -> false
      end

    carries? and not beam?(beam_pid)
  end

  defp beam?(os_pid) when is_integer(os_pid) do
    case ProcessKiller.get_process_command(os_pid) do
      {:ok, command} -> command =~ "beam"
      {:error, _gone} -> false
    end
  end

  defp beam?(_unknown), do: false

  # The group, as far as it leads one: its children carry no marker of that time.
  defp stop(%{process: process}) do
    case ProcessKiller.kill_process_group_with_escalation(process) do
      :ok -> :ok
      {:error, _not_a_leader} -> ProcessKiller.kill_with_escalation(process)
    end
  end
end
