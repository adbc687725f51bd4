defmodule Snakepit.Test.Lives do
  @moduledoc """
  The judge of what may exist once: reads what `test/fixtures/lives.py` has written, and nothing else.
  """

  @doc "The command of the program that writes to this file."
  def cmd(path), do: ["python3", Path.expand("../fixtures/lives.py", __DIR__), path]

  @doc "The processes that have written to a file, in the order of their beginnings: token, pid, first and last moment in ms."
  def read(path) do
    with {:ok, text} <- File.read(path) do
      # One that was killed may have written half of its last line.
      lines =
        for line <- String.split(text, "\n"), [_, _, _] = words <- [String.split(line)], do: words

      lines
      |> Enum.map(fn words -> words |> Enum.map(&String.to_integer/1) |> List.to_tuple() end)
      |> Enum.group_by(
        fn {token, os_pid, _at} -> {token, os_pid} end,
        &div(elem(&1, 2), 1_000_000)
      )
      |> Enum.map(fn {{token, os_pid}, moments} ->
        %{token: token, os_pid: os_pid, first: Enum.min(moments), last: Enum.max(moments)}
      end)
      |> Enum.sort_by(& &1.first)
    else
      {:error, :enoent} -> []
    end
  end

  @doc "What is wrong: two at a time, or a token that is not greater than the one before. `[]` if nothing is."
  def faults(lives) do
    for {one, next} <- Enum.zip(lives, Enum.drop(lives, 1)),
        fault <- [
          if(next.first <= one.last, do: {:two_at_a_time, one, next}),
          if(next.token <= one.token, do: {:token_not_greater, one, next})
        ],
        fault,
        do: fault
  end

  @doc "How many milliseconds there was none, between one and the next."
  def gaps(lives) do
    for {one, next} <- Enum.zip(lives, Enum.drop(lives, 1)), do: next.first - one.last
  end
end
