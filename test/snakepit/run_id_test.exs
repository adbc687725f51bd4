defmodule Snakepit.RunIDTest do
  use ExUnit.Case, async: true

  alias Snakepit.RunID

  doctest RunID

  test "100,000 ids are valid and all different" do
    ids = for _ <- 1..100_000, do: RunID.generate()
    assert Enum.all?(ids, &RunID.valid?/1)
    assert ids |> Enum.uniq() |> length() == 100_000
  end

  test "ids made by many processes at once are all different" do
    ids =
      1..50
      |> Task.async_stream(fn _ -> for(_ <- 1..1_000, do: RunID.generate()) end,
        max_concurrency: 50
      )
      |> Enum.flat_map(fn {:ok, ids} -> ids end)

    assert ids |> Enum.uniq() |> length() == 50_000
  end

  @tag :long
  test "eight BEAMs started at once make 100,000 different ids" do
    ebin = Application.app_dir(:snakepit, "ebin")
    code = "for _ <- 1..12_500, do: IO.puts(Snakepit.RunID.generate())"

    ids =
      1..8
      |> Task.async_stream(fn _ -> System.cmd("elixir", ["-pa", ebin, "-e", code]) end,
        max_concurrency: 8,
        timeout: 100_000
      )
      |> Enum.flat_map(fn {:ok, {output, 0}} -> String.split(output) end)

    assert length(ids) == 100_000
    assert Enum.all?(ids, &RunID.valid?/1)
    assert ids |> Enum.uniq() |> length() == 100_000
  end

  test "neighbouring ids do not look alike" do
    [first, second] = [RunID.generate(), RunID.generate()]
    assert String.jaro_distance(first, second) < 0.9
  end

  describe "valid?/1" do
    test "takes nothing but seven digits and lower-case letters" do
      assert RunID.valid?("0000000")
      assert RunID.valid?("zzzzzzz")

      too_short = "k3x9a2"
      too_long = "k3x9a2pq"
      upper_case = "K3x9a2p"
      punctuation = "k3x-a2p"
      line_end = "k3x9a2\n"
      not_ascii = "k3x9aé"

      for id <- [too_short, too_long, upper_case, punctuation, line_end, not_ascii, ""] do
        refute RunID.valid?(id), inspect(id)
      end
    end

    test "says no to what is not a string" do
      for term <- [nil, :k3x9a2p, 1_234_567, ~c"k3x9a2p", {"k3x9a2p"}, <<1::7>>] do
        refute RunID.valid?(term), inspect(term)
      end
    end
  end

  describe "extract_from_command/1" do
    test "finds an id in all forms of the flag" do
      for command <- [
            "python worker.py --run-id k3x9a2p",
            "python worker.py --run-id=k3x9a2p --verbose",
            "python worker.py --snakepit-run-id k3x9a2p",
            "python worker.py --snakepit-run-id=k3x9a2p",
            "worker\0--run-id\0k3x9a2p\0",
            ["worker", "--run-id", "k3x9a2p"],
            ["worker", <<255, 254>>, "--run-id=k3x9a2p"]
          ] do
        assert RunID.extract_from_command(command) == {:ok, "k3x9a2p"}, inspect(command)
      end
    end

    test "finds none where there is none" do
      for command <- [
            "",
            [],
            "python worker.py",
            "python worker.py k3x9a2p",
            "python worker.py --run-id",
            "python worker.py --run-id k3x9a2pq",
            "python worker.py --run-id=K3X9A2P",
            "python worker.py x--run-id k3x9a2p",
            "sh\0-c\0worker --run-id k3x9a2p\0",
            ["worker", "--run-id k3x9a2p"]
          ] do
        assert RunID.extract_from_command(command) == {:error, :not_found}, inspect(command)
      end
    end

    test "refuses a list of anything else" do
      assert_raise ArgumentError, ~r/binaries, got: \[~c"a"\]|binaries, got: \['a'\]/, fn ->
        RunID.extract_from_command([~c"a"])
      end
    end
  end
end
