defmodule Soak.Measures do
  @moduledoc "What a BEAM knows of itself that cannot be seen from outside."

  def all do
    tables = :ets.all()
    memory = :erlang.memory()

    %{
      atoms: :erlang.system_info(:atom_count),
      ets_tables: length(tables),
      ets_entries: tables |> Enum.map(&size/1) |> Enum.sum(),
      beam_processes: :erlang.system_info(:process_count),
      ports: :erlang.system_info(:port_count),
      memory_total: memory[:total],
      memory_processes: memory[:processes],
      memory_binary: memory[:binary],
      memory_ets: memory[:ets]
    }
  end

  # One may be deleted while they are counted.
  defp size(table) do
    case :ets.info(table, :size) do
      :undefined -> 0
      size -> size
    end
  end
end
