defmodule Snakepit.Bench.Runner do
  @moduledoc """
  `script/bench`: finds benchmarks, runs them one after the other, reports.
  """

  alias Snakepit.Bench.Report

  @directory Path.expand("..", __DIR__)

  @doc "Gives the exit status. A relative path in `arguments` is relative to `caller`."
  @spec main([String.t()], Path.t()) :: 0 | 1 | 2
  def main(arguments, caller) do
    # Whatever the locale, the table has a µ in it.
    for device <- [:standard_io, :standard_error], do: :io.setopts(device, encoding: :unicode)

    {options, names, invalid} =
      OptionParser.parse(arguments, strict: [json: :string, help: :boolean])

    json = options[:json] && Path.expand(options[:json], caller)
    unknown = names -- known()

    cond do
      options[:help] -> IO.puts(usage()) && 0
      invalid != [] -> refuse("not understood: #{Enum.map_join(invalid, " ", &elem(&1, 0))}")
      unknown != [] -> refuse("no such benchmark: #{Enum.join(unknown, ", ")}")
      json && File.touch(json) != :ok -> refuse("cannot write to #{json}")
      names == [] -> run(known(), json)
      true -> run(Enum.uniq(names), json)
    end
  end

  defp usage do
    """
    usage: script/bench [NAME...] [--json FILE]

    Runs the named benchmarks, or all, and prints a row for each thing measured:

      value     what Snakepit takes or gives
      baseline  the same thing done the other way, in the same run and unit
      ratio     how many times better the value is than the baseline
      target    what is required of the ratio or the value
      met       whether it is so

    --json FILE writes the rows to FILE too, as a list of objects.
    The exit status is 1 if a benchmark failed or a target is not met.

    Benchmarks: #{Enum.join(known(), ", ")}\
    """
  end

  defp refuse(reason) do
    IO.puts(:stderr, "#{reason}\n\n#{usage()}")
    2
  end

  defp known do
    for path <- Path.wildcard(Path.join(@directory, "*.exs")), do: Path.basename(path, ".exs")
  end

  defp run(names, json) do
    results = Enum.map(names, &measure/1)
    rows = Enum.concat(for {:ok, rows} <- results, do: rows)
    failed = for {:failed, name} <- results, do: name

    IO.puts(Report.table(rows))
    if json, do: File.write!(json, Report.json(rows))

    for name <- failed, do: IO.puts("\nFAILED: #{name}, as told above")
    missed = for %{met: false} = row <- rows, do: row
    for row <- missed, do: IO.puts("\nNOT MET: #{row.name}: #{row.target}")
    if failed == [] and missed == [], do: 0, else: 1
  end

  defp measure(name) do
    IO.puts(:stderr, name)
    [{module, _binary} | _] = Code.require_file(name <> ".exs", @directory)
    {:ok, for(row <- module.run(), do: %{row | name: "#{name}: #{row.name}"})}
  catch
    # Also exits and throws: the others run all the same.
    kind, reason ->
      IO.puts(:stderr, Exception.format(kind, reason, __STACKTRACE__))
      {:failed, name}
  end
end
