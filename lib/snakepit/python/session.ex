defmodule Snakepit.Python.Session do
  @moduledoc """
  An object, or names, that one worker of a pool keeps for you: see `Snakepit.Python.session/4`.
  """

  @enforce_keys [:pool, :key, :affinity, :target, :args, :kwargs]
  defstruct [:pool, :key, :affinity, :target, :args, :kwargs]

  @opaque t :: %__MODULE__{
            pool: Snakepit.Pool.pool(),
            key: String.t(),
            affinity: :hint | :strict | :fail_fast,
            target: String.t(),
            args: list(),
            kwargs: map()
          }

  # A request that may make it carries what it is made of.
  @doc false
  @spec carried(t(), boolean()) :: [term()]
  def carried(session, make?) do
    if make? or session.affinity == :hint,
      do: [session.key, true, session.target, session.args, session.kwargs],
      else: [session.key, false, "", [], %{}]
  end
end
