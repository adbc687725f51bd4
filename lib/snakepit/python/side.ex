defmodule Snakepit.Python.Side do
  @moduledoc false

  # What a Python worker says beside its answers. This runs in the process of the worker, one packet after the other, so
  # nothing here waits: a function of the application that Python calls runs in a task of its own.

  require Logger

  alias Snakepit.Python.{Codec, Exports, Protocol, Runtime}

  @control Protocol.control()
  @levels %{
    "debug" => :debug,
    "info" => :info,
    "warning" => :warning,
    "error" => :error,
    "critical" => :critical
  }

  @doc "The `:output` of a worker whose Python may call these functions."
  @spec hear(Exports.t()) :: (binary() -> term())
  def hear(exports), do: &hear(&1, exports)

  # Whoever reads the stream decodes it.
  defp hear(<<@control, ?i, id::64, message::binary>>, _exports), do: Runtime.item(id, message)

  defp hear(<<@control, kind, message::binary>>, exports) do
    case Codec.decode(message) do
      {:ok, value, fds} -> heard(kind, value, fds, exports)
      {:error, _unreadable} -> exit(:unexpected_output)
    end
  end

  # The answer to nothing that anybody has asked, or no packet of the bridge's at all: nobody can be sure of the next.
  defp hear(_packet, _exports), do: exit(:unexpected_output)

  defp heard(?c, [<<_::64>> = id, name, args], _fds, exports),
    do: Runtime.task(fn worker -> Exports.answer(exports, worker, id, name, args) end)

  defp heard(?s, [name, args], _fds, exports),
    do: Runtime.task(fn _worker -> Exports.perform(exports, name, args) end)

  defp heard(?l, [level, logger, text], _fds, _exports) when is_map_key(@levels, level),
    do: Logger.log(@levels[level], "#{logger}: #{text}", python_logger: logger)

  defp heard(_kind, _value, _fds, _exports), do: exit(:unexpected_output)

  @doc "The `:on_late` of a worker: interrupts what nobody waits for any more."
  @spec cancel(non_neg_integer()) :: pid()
  def cancel(tag), do: Runtime.task(fn worker -> Protocol.cancel(worker, tag) end)
end
