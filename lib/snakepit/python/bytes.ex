defmodule Snakepit.Python.Bytes do
  @moduledoc """
  A binary that is `bytes` in Python, also if it happens to be text. See `Snakepit.Python.bytes/1`.
  """

  @enforce_keys [:data]
  defstruct [:data]

  @type t :: %__MODULE__{data: binary()}
end
