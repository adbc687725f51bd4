defmodule Snakepit.ProcessLabel do
  @moduledoc false

  # Labels of BEAM processes, which observer, crash reports and `Process.info/2` show. OTP has them since 27.
  # On an older OTP no label is set.

  @doc "Sets the label of the calling process."
  @spec set(term()) :: :ok
  def set(label) do
    if function_exported?(:proc_lib, :set_label, 1), do: apply(:proc_lib, :set_label, [label])
    :ok
  end
end
