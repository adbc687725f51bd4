defmodule Wordy do
  @doc "Returns the number of words in a line of text. A Python process of the pool counts them."
  def count(line) do
    request = &Snakepit.Worker.request(&1, [line, "\n"])

    with {:ok, answer} <- Snakepit.Pool.with_worker(Wordy.Counters, request),
         do: {:ok, answer |> String.trim() |> String.to_integer()}
  end

  @doc "Returns the lines of a text in order."
  def sort(text) do
    {sorted, 0} = Snakepit.cmd("sort", [], input: text, timeout: 5_000)
    sorted
  end

  @doc "Returns the first `count` lines of a file that contain `word`. The rest is not read."
  def grep(word, path, count) do
    ["grep", "--line-buffered", "-F", "-e", word, path]
    |> Snakepit.stream!(packet: :line)
    |> Enum.take(count)
  end
end
