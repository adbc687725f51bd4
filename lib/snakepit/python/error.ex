defmodule Snakepit.Python.Error do
  @moduledoc """
  An exception that was raised in Python.

  `type` is its class, `"ValueError"` or with its module `"json.decoder.JSONDecodeError"`; `message` is what `str()`
  makes of it, and `traceback` what Python would have printed.
  """

  defexception [:type, :message, :traceback]

  @type t :: %__MODULE__{type: String.t(), message: String.t(), traceback: String.t()}

  @impl true
  def message(%{type: type, message: ""}), do: type
  def message(%{type: type, message: message}), do: "#{type}: #{message}"
end
