defmodule Snakepit.Cluster.Member.NumberTest do
  use ExUnit.Case

  alias Snakepit.Cluster.Member.Number
  alias Snakepit.Run

  setup do
    on_exit(fn -> for path <- files(), do: File.rm!(path) end)
  end

  defp files, do: Path.wildcard(Path.join(Run.current!().data_dir, "member-*"))

  test "what was written is read, and nothing is zero" do
    assert Number.read!() == %{number: 0, longest: 0}
    assert Number.write(%{number: 7, longest: 5_000}) == :ok
    assert Number.write(%{number: 8, longest: 5_000}) == :ok
    assert Number.read!() == %{number: 8, longest: 5_000}
    assert [_one] = files()
  end

  test "what is damaged is refused: a token must not be given twice" do
    for text <- [
          "",
          "snakepit-lease 1\n7\n",
          "snakepit-lease 2\n7\n5\n",
          "snakepit-lease 1\n7x\n5\n"
        ] do
      Number.write(%{number: 1, longest: 1})
      [path] = files()
      File.write!(path, text)
      assert_raise ArgumentError, ~r/is damaged: .*remove it/, &Number.read!/0
    end
  end
end
