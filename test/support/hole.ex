defmodule Snakepit.Test.Hole do
  @moduledoc "Collects nothing, and takes a moment for each piece of it, so that the next one is there by then."
  defstruct pause_ms: 0

  defimpl Collectable do
    def into(hole) do
      {hole,
       fn
         hole, {:cont, _data} -> receive(do: (:never -> hole), after: (hole.pause_ms -> hole))
         hole, _end -> hole
       end}
    end
  end
end
