defmodule Snakepit.Bench.Runner do
  @moduledoc """
  `script/bench`: finds benchmarks, runs them one after the other, reports.
  """

  alias Snakepit.Bench.{Baseline, Herd, Machine, Plots, Report}

  @directory Path.expand("..", __DIR__)
  # Until the kernel has put away what a benchmark has left.
  @looks_afterwards 5
  @saved Path.join(@directory, "baseline.json")
  @options [
    others: :integer,
    json: :string,
    plots: :string,
    check: :boolean,
    save: :boolean
  ]

  @doc "Gives the exit status. A relative path in `arguments` is relative to `caller`."
  @spec main([String.t()], Path.t()) :: 0 | 1 | 2 | 3
  def main(arguments, caller) do
    # Whatever the locale, the table has a µ in it.
    for device <- [:standard_io, :standard_error], do: :io.setopts(device, encoding: :unicode)

    {options, names, invalid} = OptionParser.parse(arguments, strict: @options)
    options = Map.new(options, fn {key, value} -> {key, expanded(key, value, caller)} end)
    unknown = names -- known()

    cond do
      invalid != [] ->
        refuse("not understood: #{Enum.map_join(invalid, " ", &elem(&1, 0))}")

      unknown != [] ->
        refuse(
          "no such benchmark: #{Enum.join(unknown, ", ")}; there are #{Enum.join(known(), ", ")}"
        )

      options[:others] && (options[:check] || options[:save]) ->
        refuse(others_alone())

      not writable?(options) ->
        refuse("cannot write to #{options[:json] || options[:plots]}")

      options[:check] && not File.exists?(@saved) ->
        refuse("nothing was saved to compare with")

      names == [] ->
        run(known(), options)

      true ->
        run(Enum.uniq(names), options)
    end
  end

  defp expanded(key, path, caller) when key in [:json, :plots], do: Path.expand(path, caller)
  defp expanded(_key, value, _caller), do: value

  # Known now, and not when everything has been measured.
  defp writable?(options) do
    (options[:json] == nil or File.touch(options[:json]) == :ok) and
      (options[:plots] == nil or File.mkdir_p(options[:plots]) == :ok)
  end

  defp others_alone, do: "--others measures something else than what --check and --save are about"

  defp refuse(reason) do
    IO.puts(:stderr, "#{reason}; see script/bench --help")
    2
  end

  defp known do
    for path <- Path.wildcard(Path.join(@directory, "*.exs")), do: Path.basename(path, ".exs")
  end

  defp run(names, options) do
    facts = Machine.facts()
    results = Enum.map(names, &measure(&1, options[:others] || 0))
    facts = facts ++ [busy_percent: results |> Enum.map(& &1.busy_percent) |> Enum.max()]
    rows = Enum.flat_map(results, & &1.rows)
    failed = for %{failed?: true, name: name} <- results, do: name

    IO.puts(Report.head(facts) <> "\n\n" <> Report.table(rows))
    for warning <- results |> Enum.map(& &1.warning) |> Enum.uniq(), warning, do: tell(warning)
    if options[:json], do: File.write!(options[:json], Report.json(facts, rows))
    for name <- failed, do: tell("FAILED: #{name}, as told above")
    for table <- Report.sizes(rows), do: tell(table)
    for [_ | _] = verdicts <- [Report.verdicts(rows)], do: tell(Enum.join(verdicts, "\n"))

    drawn? = options[:plots] == nil or drawn?(rows, facts, options[:plots])
    worse? = options[:check] == true and worse?(names -- failed, facts, rows)
    if options[:save] && failed == [], do: save(names, facts, rows)
    verdicts = if options[:check], do: [], else: Enum.map(rows, & &1.verdict)

    cond do
      failed != [] or not drawn? or worse? or :missed in verdicts -> 1
      :undecided in verdicts -> 3
      true -> 0
    end
  end

  defp measure(name, others) do
    before = Machine.await_quiet()
    IO.puts(:stderr, Enum.join([name | List.wrap(Machine.warning(before))], "\n"))
    result = %{name: name, rows: [], failed?: false}

    # In a process of its own, with an empty mailbox: whoever waits for a message in one that has those
    # of thousands of processes searches them all, and that was measured too.
    result = Task.await(Task.async(fn -> rows(name, others, result) end), :infinity)
    busy = max(before, Machine.await_quiet(@looks_afterwards))
    warning = Machine.warning(busy)
    rows = if warning, do: Enum.map(result.rows, &Snakepit.Bench.disturbed/1), else: result.rows

    Map.merge(result, %{rows: rows, busy_percent: busy, warning: warning && "#{warning}: #{name}"})
  end

  defp rows(name, others, result) do
    [{module, _binary} | _] = Code.require_file(name <> ".exs", @directory)
    %{^others => rows} = Herd.at_sizes([others], :up, fn _others -> module.run() end)
    name = if others == 0, do: name, else: "#{name} with #{others} others"
    %{result | rows: for(row <- rows, do: %{row | name: "#{name}: #{row.name}"})}
  catch
    # Also exits and throws: the others run all the same.
    kind, reason ->
      IO.puts(:stderr, Exception.format(kind, reason, __STACKTRACE__))
      %{result | failed?: true}
  end

  defp drawn?(rows, facts, directory) do
    case Plots.write(rows, "#{facts[:cpu]}, #{facts[:cores]} cores, #{facts[:commit]}", directory) do
      {:ok, []} -> tell("NOT DRAWN: no row has a size or a target") != :ok
      {:ok, paths} -> tell("drawn: #{Enum.join(paths, ", ")}") == :ok
      {:error, reason} -> tell("NOT DRAWN: #{reason}") != :ok
    end
  end

  defp worse?(names, facts, rows) do
    saved = Baseline.read(@saved)

    unless Machine.same?(saved.machine, facts) do
      %{"cpu" => cpu, "cores" => cores} = saved.machine
      tell("What was saved was measured on another machine: #{cpu}, #{cores} cores")
    end

    findings = saved.rows |> Enum.filter(&of?(&1, names)) |> Baseline.compare(rows)
    for {kind, text} <- findings, do: tell("#{kind |> to_string() |> String.upcase()}: #{text}")
    if findings == [], do: tell("Nothing got worse.")
    Baseline.bad?(findings)
  end

  # Rows of benchmarks that did not run are kept, if they are of this machine.
  defp save(names, facts, rows) do
    saved = Baseline.read(@saved)

    others =
      if Machine.same?(saved.machine, facts),
        do: Enum.reject(saved.rows, &of?(&1, names)),
        else: []

    File.write!(@saved, Report.json(facts, Enum.sort_by(others ++ rows, & &1.name)))
    tell("saved: #{length(rows)} rows, and #{length(others)} of before")
  end

  defp of?(row, names), do: Enum.any?(names, &String.starts_with?(row.name, &1 <> ": "))

  defp tell(text), do: IO.puts("\n" <> text)
end
