defmodule Snakepit.Bench.Machine do
  @moduledoc """
  What the figures were measured on, and whether it had anything else to do.
  """

  # A process that wakes up now and then takes less; whoever compiles or tests takes a whole core.
  @quiet_percent 10
  @look_ms 1_000
  # What the kernel may take to put away what a benchmark has left.
  @patience_looks 20

  @type facts :: [{atom(), term()}]

  @doc "Facts to cite along with figures."
  @spec facts() :: facts()
  def facts do
    [
      commit: commit(),
      cpu: cpu(),
      cores: :erlang.system_info(:logical_processors_available),
      memory_gib: memory_gib(),
      kernel: line("/proc/sys/kernel/osrelease"),
      otp: "#{System.otp_release()}, erts #{:erlang.system_info(:version)}",
      elixir: System.version(),
      rust: command("rustc", ["--version"]),
      load_average: load_average()
    ]
  end

  @doc "Whether figures of the two may be compared as they are."
  @spec same?(%{optional(String.t()) => term()}, facts()) :: boolean()
  def same?(then, now), do: Enum.all?([:cpu, :cores], &(then["#{&1}"] == now[&1]))

  @doc """
  How much of a core others use, in percent, while this BEAM waits. Load averages tell what was in the
  last minute, which may have been the compiler.
  """
  @spec busy_percent() :: float()
  def busy_percent do
    [before, later] =
      for pause <- [@look_ms, 0] do
        ticks = {used_by_all(), used_by_us()}
        Process.sleep(pause)
        ticks
      end

    {all, us} = {elem(later, 0) - elem(before, 0), elem(later, 1) - elem(before, 1)}
    # Two clocks that tick every 10 ms may differ by as much.
    max(0.0, (all - us) * 10 * 100 / @look_ms)
  end

  @doc "Waits for a while until others do next to nothing. Gives how much they used in the end, in percent."
  @spec await_quiet(non_neg_integer()) :: float()
  def await_quiet(looks \\ @patience_looks) do
    percent = busy_percent()
    if percent <= @quiet_percent or looks == 0, do: percent, else: await_quiet(looks - 1)
  end

  @doc "Says so if that is more than a machine at rest does."
  @spec warning(float()) :: String.t() | nil
  def warning(percent) when percent <= @quiet_percent, do: nil

  def warning(percent) do
    "NOT QUIET: something else uses #{round(percent)} % of a core, which bears on the figures"
  end

  # The guests' time is part of the user's. Stolen time counts: what a neighbour takes is missing too.
  defp used_by_all do
    ["cpu" | ticks] = "/proc/stat" |> line() |> String.split()
    [user, nice, system, _idle, _iowait | rest] = Enum.map(ticks, &String.to_integer/1)
    user + nice + system + Enum.sum(Enum.take(rest, 3))
  end

  defp used_by_us do
    [_name, rest] = File.read!("/proc/self/stat") |> String.split(") ", parts: 2)
    rest |> String.split() |> Enum.slice(11, 2) |> Enum.map(&String.to_integer/1) |> Enum.sum()
  end

  # Not every architecture names its model.
  defp cpu do
    case Regex.run(~r/^model name\s*: (.+)$/m, File.read!("/proc/cpuinfo")) do
      [_, model] -> model
      nil -> to_string(:erlang.system_info(:system_architecture))
    end
  end

  defp memory_gib do
    [_, kb] = Regex.run(~r/^MemTotal: +(\d+) kB$/m, File.read!("/proc/meminfo"))
    Float.round(String.to_integer(kb) / 1024 / 1024, 1)
  end

  defp load_average do
    for number <- "/proc/loadavg" |> line() |> String.split() |> Enum.take(3),
        do: String.to_float(number)
  end

  defp commit do
    changed = if command("git", ["status", "--porcelain"]) in ["", nil], do: "", else: ", changed"
    commit = command("git", ["rev-parse", "--short", "HEAD"])
    commit && commit <> changed
  end

  defp line(path), do: path |> File.read!() |> String.split("\n", parts: 2) |> hd()

  # Nothing that a figure depends on: where there is no such program, the fact is not known.
  defp command(program, arguments) do
    with path when path != nil <- System.find_executable(program),
         {output, 0} <- System.cmd(path, arguments, stderr_to_stdout: true) do
      String.trim(output)
    else
      _ -> nil
    end
  end
end
