defmodule Snakepit.Ledger.Legacy do
  @moduledoc false

  # Ledgers of the earlier Snakepit: `process_registry_<node>.dets`, with workers by id, each with a pid and
  # no identity. They are read once and set aside. A pid alone does not identify a process. So a process is
  # ended only if its command line has the run id of the entry, and the BEAM that wrote the entry is gone.
  # Only files that belong to this user, and that nobody else may write to, are read.

  require Logger

  alias Snakepit.{DataDir, Native, OSProcess, ProcessKiller, RunID}
  alias Snakepit.Ledger.{Salvage, Table}

  @pattern "process_registry_*.dets"
  # A thousand times what some hundred workers take.
  @max_bytes 64 * 1024 * 1024

  # What the keys of an entry are. They have to be known before it is decoded.
  @keys [:process_pid, :beam_run_id, :run_id, :beam_os_pid] ++
          [:status, :active, :reserved, :reserved_at, :elixir_pid, :fingerprint, :registered_at] ++
          [:pgid, :process_group?, :last_seen, :terminated_at, true, false, nil]

  # How Erlang pids begin in the external term format: their own tag and that of their node, an atom.
  @pids for pid <- [?X, ?g], atom <- [?w, ?s, ?v, ?d], do: <<pid, atom>>
  @max_nodes 16

  @doc "Ends what the ledgers in a directory speak of, and sets them aside."
  @spec retire(Path.t()) :: :ok
  def retire(data_dir) do
    for path <- Path.wildcard(Path.join(data_dir, @pattern)) do
      case Native.file_read(path, @max_bytes) do
        {:ok, bytes} -> retire(path, bytes)
        {:error, {reason, _os_pid}} -> refuse(path, reason)
      end
    end

    :ok
  end

  defp retire(path, bytes) do
    ended = bytes |> entries() |> Enum.filter(&orphan?/1) |> Enum.map(&stop/1)
    aside = Table.set_aside(path, "retired")

    Logger.info(
      "Snakepit ended #{length(ended)} processes of #{path}, which was set aside as #{aside}"
    )
  end

  # What may be readable the next time stays.
  defp refuse(path, reason) do
    why = DataDir.unreadable!(:reap, reason, explain(reason))
    aside = Table.set_aside(path, "refused")
    Logger.warning("Snakepit: #{path} was not read, because #{why}; set aside as #{aside}")
  end

  defp explain(:eperm), do: "it is another user's, or others may write to it"
  defp explain(:efbig), do: "it is longer than #{@max_bytes} bytes"
  defp explain(reason), do: DataDir.why(reason)

  defp entries(bytes) do
    # Order: the atoms first, a bounded number of them. What has others is not decoded.
    learn(bytes)

    case Salvage.parse(bytes) do
      {:ok, found} -> Enum.flat_map(found.objects ++ found.leftovers, &entry/1)
      {:error, _no_table} -> []
    end
  end

  # Entries hold pids, whose nodes are no atoms yet if they had other names than this one.
  defp learn(bytes) do
    bytes
    |> :binary.matches(@pids)
    |> Stream.map(fn {at, 2} -> node_at(binary_part(bytes, at + 1, byte_size(bytes) - at - 1)) end)
    |> Stream.filter(&(&1 != nil and &1 =~ ~r/\A[[:alnum:]_.-]+@[[:alnum:]_.:-]+\z/))
    |> Stream.uniq()
    |> Stream.take(@max_nodes)
    |> Enum.each(&String.to_atom/1)
  end

  defp node_at(<<tag, size, name::binary-size(size), _rest::binary>>) when tag in [?w, ?s],
    do: name

  defp node_at(<<tag, size::16, name::binary-size(size), _rest::binary>>) when tag in [?v, ?d],
    do: name

  defp node_at(_other), do: nil

  # `{worker_id, map}`, or a tuple of worker id, owner, pid, fingerprint, run id and time.
  defp entry({_worker_id, %{} = fields}) do
    fields = Map.take(fields, @keys)
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
