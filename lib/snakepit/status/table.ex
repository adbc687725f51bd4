defmodule Snakepit.Status.Table do
  @moduledoc false

  # Workers as a table, in the form that `snakepit_guardian ps` has. Pure.

  @titles ~w(RUN STATE WORKER OS_PID PROCS CPU MEMORY UPTIME HEARTBEAT RESTARTS)
  # Its names alone may be shortened, and not beyond this.
  @worker 2
  @shortest 8
  @left [0, 1, 2]

  @doc "Returns the table, with lines of at most `width` characters."
  @spec render([Snakepit.Status.t()], pos_integer() | :infinity) :: String.t()
  def render(workers, width) do
    rows = [@titles | Enum.map(workers, &cells/1)]
    columns = rows |> Enum.zip() |> Enum.map(&longest/1)
    columns = List.update_at(columns, @worker, &shrink(&1, columns, width))

    Enum.map_join(rows, "\n", fn row ->
      row
      |> Enum.zip(columns)
      |> Enum.with_index()
      |> Enum.map_join("  ", fn {{cell, column}, index} -> pad(cell, column, index) end)
      |> String.trim_trailing()
      |> cut(width)
    end)
  end

  defp longest(cells), do: cells |> Tuple.to_list() |> Enum.map(&String.length/1) |> Enum.max()

  defp shrink(column, _columns, :infinity), do: column

  defp shrink(column, columns, width) do
    whole = Enum.sum(columns) + 2 * (length(columns) - 1)
    column |> Kernel.-(max(whole - width, 0)) |> max(min(column, @shortest))
  end

  defp pad(cell, column, @worker), do: cell |> cut(column) |> String.pad_trailing(column)
  defp pad(cell, column, index) when index in @left, do: String.pad_trailing(cell, column)
  defp pad(cell, column, _right), do: String.pad_leading(cell, column)

  defp cut(text, :infinity), do: text

  defp cut(text, width) do
    if String.length(text) <= width, do: text, else: String.slice(text, 0, width - 1) <> "…"
  end

  defp cells(worker) do
    [
      worker.run_id,
      Atom.to_string(worker.state),
      printable(worker.worker_id),
      text(worker.os_pid),
      text(worker.processes),
      duration(div(worker.cpu_us, 1_000)),
      size(worker.rss_bytes),
      duration(worker.uptime_ms),
      heartbeat(worker.heartbeat),
      text(worker.restarts)
    ]
  end

  defp printable(id), do: String.replace(id, ~r/[[:cntrl:]]/u, "?")

  defp text(nil), do: "-"
  defp text(number), do: Integer.to_string(number)

  defp heartbeat(%{last_pong_ms_ago: ms}) when ms != nil, do: duration(max(ms, 0))
  defp heartbeat(_none), do: "-"

  @doc "Returns milliseconds as people read them."
  @spec duration(non_neg_integer()) :: String.t()
  def duration(ms) when ms < 10_000, do: "#{div(ms, 1_000)}.#{ms |> rem(1_000) |> div(100)}s"

  def duration(ms) do
    seconds = div(ms, 1_000)

    cond do
      seconds < 60 -> "#{seconds}s"
      seconds < 3_600 -> two(seconds, 60, "m", "s")
      seconds < 86_400 -> two(div(seconds, 60), 60, "h", "m")
      true -> two(div(seconds, 3_600), 24, "d", "h")
    end
  end

  defp two(count, per, large, small) do
    rest = count |> rem(per) |> Integer.to_string() |> String.pad_leading(2, "0")
    "#{div(count, per)}#{large}#{rest}#{small}"
  end

  @doc "Returns bytes as people read them."
  @spec size(non_neg_integer()) :: String.t()
  def size(bytes) when bytes < 1_048_576, do: "#{div(bytes, 1_024)}K"
  def size(bytes) when bytes < 1_073_741_824, do: size(bytes, 1_048_576, "M")
  def size(bytes), do: size(bytes, 1_073_741_824, "G")

  defp size(bytes, unit, name) when bytes < 10 * unit,
    do: "#{div(bytes, unit)}.#{div(rem(bytes, unit) * 10, unit)}#{name}"

  defp size(bytes, unit, name), do: "#{div(bytes, unit)}#{name}"
end
