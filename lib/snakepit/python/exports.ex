defmodule Snakepit.Python.Exports do
  @moduledoc false

  # Functions of the application that Python may call, by the names that Python knows them by. Nothing else can be
  # called, and no name from Python becomes an atom.

  require Logger

  alias Snakepit.Python.Protocol

  @type t :: %{String.t() => fun() | {module(), atom()}}

  @doc """
  Returns the functions by name. They are given as `{module, [function]}` or `{module, function}`, or as a pair of a
  name and a function.
  """
  @spec new!(list()) :: t()
  def new!(given), do: given |> Enum.flat_map(&named/1) |> Map.new()

  defp named({name, fun}) when is_binary(name) and is_function(fun), do: [{name, fun}]

  defp named({module, functions}) when is_atom(module) and is_list(functions),
    do: for(function <- functions, {name, fun} <- named({module, function}), do: {name, fun})

  defp named({module, function}) when is_atom(module) and is_atom(function),
    do: [{"#{inspect(module)}.#{function}", {module, function}}]

  @doc "Whether that can be the `:exports`, for the check of options."
  @spec valid?(term()) :: boolean()
  def valid?(given) when is_list(given), do: Enum.all?(given, &entry?/1)
  def valid?(_other), do: false

  defp entry?({name, fun}) when is_binary(name), do: is_function(fun)

  defp entry?({module, functions}) when is_atom(module) and is_list(functions),
    do: Enum.all?(functions, &is_atom/1)

  defp entry?({module, function}), do: is_atom(module) and is_atom(function)
  defp entry?(_other), do: false

  @doc "Calls the function for a worker that waits for the result."
  @spec answer(t(), pid(), binary(), term(), term()) :: term()
  def answer(exports, worker, id, name, args) do
    case run(exports, name, args) do
      {:ok, result} -> Protocol.returned(worker, id, result)
      {:error, text} -> Protocol.failed(worker, id, text)
    end
  end

  @doc "Calls the function for nobody who waits."
  @spec perform(t(), term(), term()) :: term()
  def perform(exports, name, args) do
    with {:error, text} <- run(exports, name, args), do: Logger.error("sent by Python: " <> text)
  end

  defp run(exports, name, args) when is_binary(name) and is_list(args) do
    case exports do
      %{^name => function} -> {:ok, call(function, args)}
      _not_listed -> {:error, "#{name} is not listed in the :exports of this pool"}
    end
  catch
    kind, reason -> {:error, "#{name}: " <> Exception.format_banner(kind, reason, __STACKTRACE__)}
  end

  defp run(_exports, _name, _args), do: {:error, "expected a name and a list of arguments"}

  defp call({module, function}, args), do: apply(module, function, args)
  defp call(fun, args), do: apply(fun, args)
end
