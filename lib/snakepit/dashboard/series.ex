defmodule Snakepit.Dashboard.Series do
  @moduledoc false

  # What was measured over time: a bounded list of points, newest first. Of CPU time, which only grows, a point has what
  # was used per second since the last one, in percent of one processor.

  # Two minutes at a look per second, and twenty where nobody looks. A thousand workers take 6 MB.
  @most 120

  defstruct cpu_us: nil, at: nil, points: []

  @typedoc "`at` is milliseconds since the epoch."
  @type point :: [at: integer(), cpu: float() | nil, memory: non_neg_integer()]
  @type t :: %__MODULE__{
          cpu_us: non_neg_integer() | nil,
          at: integer() | nil,
          points: [nonempty_list()]
        }

  @doc """
  Adds what was measured at a time.

      iex> alias Snakepit.Dashboard.Series
      iex> series = %Series{} |> Series.add(1_000, 5_000, 100) |> Series.add(3_000, 1_005_000, 120)
      iex> Series.points(series)
      [[1_000, nil, 100], [3_000, 50.0, 120]]

  """
  @spec add(t(), integer(), non_neg_integer(), non_neg_integer()) :: t()
  def add(series, at, cpu_us, memory) do
    series = put(series, [at, percent(series, at, cpu_us), memory])
    %{series | cpu_us: cpu_us, at: at}
  end

  @doc "Adds a point as it is."
  @spec put(t(), nonempty_list()) :: t()
  def put(series, point),
    do: %{series | points: [point | Enum.take(series.points, @most - 1)]}

  @doc "Returns the points, oldest first: time, CPU in percent or `nil`, memory in bytes."
  @spec points(t(), pos_integer()) :: [nonempty_list()]
  def points(series, most \\ @most), do: series.points |> Enum.take(most) |> Enum.reverse()

  @doc "Returns the CPU of the last point."
  @spec cpu(t()) :: float() | nil
  def cpu(%{points: [[_at, cpu | _] | _]}), do: cpu
  def cpu(_empty), do: nil

  # What is counted in ticks, and with processes that come and go, may go back by some.
  defp percent(%{at: then} = series, at, cpu_us) when is_integer(then) and at > then,
    do: Float.round(max(cpu_us - series.cpu_us, 0) / (at - then) / 10, 1)

  defp percent(_first, _at, _cpu_us), do: nil
end
