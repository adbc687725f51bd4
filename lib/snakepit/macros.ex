defmodule Snakepit.Macros do
  @moduledoc false

  # For macros that expand to code of packages which are no dependency of this one.

  @doc "Raises a `CompileError` at the line of the user's `use`, if a module is missing."
  @spec require!(module(), Macro.Env.t(), module(), String.t()) :: :ok
  def require!(module, caller, used, dependency) do
    unless Code.ensure_loaded?(module) do
      raise CompileError,
        file: caller.file,
        line: caller.line,
        description:
          "use #{inspect(used)} needs #{inspect(module)}, which is not there; add #{dependency} to the " <>
            "dependencies of your application, and run mix deps.get"
    end

    :ok
  end
end
