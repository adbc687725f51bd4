defmodule Soak.Leaks do
  @moduledoc """
  What must not be, on purpose: so that it can be seen whether the verdict notices. Ten times a second
  each of those that were asked for loses something.
  """

  @period_ms 100

  def start(kinds, data_dir),
    do: for(kind <- kinds, do: spawn(fn -> start_one(kind, data_dir) end))

  defp start_one(:ets, _data_dir) do
    table = :ets.new(:leak, [:public])
    for_ever(0, &:ets.insert(table, {&1}))
  end

  defp start_one(:disk, data_dir) do
    path = Path.join(data_dir, "leak")
    for_ever(0, fn _number -> File.write(path, :binary.copy("x", 1024), [:append]) end)
  end

  # Only when everything has stopped.
  defp start_one(:survivor, _data_dir), do: :ok

  defp start_one(kind, _data_dir), do: for_ever([], &[lose(kind, length(&1)) | &1])

  defp lose(:atoms, number), do: String.to_atom("soak_leak_#{number}")
  defp lose(:processes, _number), do: spawn(fn -> Process.sleep(:infinity) end)
  defp lose(:ports, _number), do: Port.open({:spawn_driver, ~c"ram_file_drv"}, [])
  defp lose(:descriptors, _number), do: :file.open(~c"/dev/null", [:read, :raw])
  defp lose(:memory, _number), do: :binary.copy(<<1>>, 128 * 1024)

  def stop(kinds, token) do
    if :survivor in kinds do
      Port.open({:spawn_executable, ~c"/bin/sh"},
        args: ["-c", "setsid sleep 86400.#{token} >/dev/null 2>&1 &"]
      )
    end
  end

  defp for_ever(state, fun) do
    Process.sleep(@period_ms)

    case fun.(state) do
      lost when is_list(lost) -> for_ever(lost, fun)
      _done -> for_ever(state + 1, fun)
    end
  end
end
