defmodule Snakepit.Test.Coverage do
  @moduledoc """
  For `mix test --cover`: every line of the modules that clean up is to be run by a test. Lists those that
  are not, and fails the suite if there are any.

  What runs in second BEAMs does not count, so each branch has a test in this one.
  """

  @modules [
    Snakepit.Auditor,
    Snakepit.Guardian,
    Snakepit.Guardian.Shutdown,
    Snakepit.Guardian.Wire,
    Snakepit.Cleanup.PreviousGuardian,
    Snakepit.Guardian.Server,
    Snakepit.Pool.ApplicationCleanup,
    Snakepit.Pool.PIDLedger,
    Snakepit.Pool.ProcessRegistry,
    Snakepit.Pool.ProcessRegistry.Server,
    Snakepit.Pool.ProcessRegistry.Table,
    Snakepit.ProcessKiller,
    Snakepit.RunState
  ]

  @doc false
  # As `Mix.Tasks.Test.Coverage` does it: begun before the tests, and the function called after them.
  def start(compile_path, _options) do
    cover(:stop, [])
    {:ok, _pid} = cover(:start, [])

    for module <- @modules do
      beam = Path.join(compile_path, "#{module}.beam")
      {:ok, ^module} = cover(:compile_beam, [String.to_charlist(beam)])
    end

    fn -> report(Enum.map(@modules, &missed/1)) end
  end

  # Not called by name: it is of OTP's tools, which nothing but the tests needs.
  defp cover(function, arguments), do: apply(:cover, function, arguments)

  defp missed(module) do
    {:ok, lines} = cover(:analyse, [module, :calls, :line])
    # Line 0 is what macros made; a line with several clauses counts if one of them ran.
    counts = for {{_module, line}, count} <- lines, line > 0, do: {line, count}
    ran = for {line, count} <- counts, count > 0, into: MapSet.new(), do: line
    all = for {line, _count} <- counts, into: MapSet.new(), do: line
    {module, MapSet.size(all), all |> MapSet.difference(ran) |> Enum.sort()}
  end

  defp report(results) do
    IO.puts("\nCoverage of what cleans up:")

    for {module, count, missed} <- results do
      share = Float.floor(100 * (count - length(missed)) / count, 1)

      IO.puts(
        "  #{String.pad_leading("#{share}", 5)} %  #{inspect(module)}#{lines(module, missed)}"
      )
    end

    if Enum.any?(results, fn {_module, _count, missed} -> missed != [] end) do
      System.at_exit(fn _status -> exit({:shutdown, 1}) end)
    end
  end

  defp lines(_module, []), do: ""

  defp lines(module, missed) do
    source = module.module_info(:compile)[:source] |> List.to_string() |> Path.relative_to_cwd()
    "\n" <> Enum.map_join(missed, "\n", &"           not run: #{source}:#{&1}")
  end
end
