defmodule Snakepit.Output.BufferTest do
  use ExUnit.Case, async: true

  alias Snakepit.Output.Buffer

  # The same as one binary.
  defp expect("", _what, ended?), do: if(ended?, do: :eof, else: :more)
  defp expect(data, :any, _ended?), do: data

  defp expect(data, count, ended?) when is_integer(count) do
    cond do
      byte_size(data) >= count -> binary_part(data, 0, count)
      ended? -> data
      true -> :more
    end
  end

  defp expect(data, :line, ended?) do
    case :binary.match(data, "\n") do
      {at, 1} -> binary_part(data, 0, at + 1)
      :nomatch when ended? -> data
      :nomatch -> :more
    end
  end

  test "bytes come out as they went in, however they are added and taken" do
    :rand.seed(:exsss, {1, 2, ExUnit.configuration()[:seed]})
    for _ <- 1..300, do: run(Buffer.new(:bytes), "", 60)
  end

  defp run(buffer, _model, 0), do: buffer

  defp run(buffer, model, left) do
    case Enum.random([:add, :add, :any, :line, 1, 3, 50, :finish]) do
      :add when not buffer.ended? ->
        data = random(:rand.uniform(20))
        run(Buffer.add(buffer, [data, ""]), model <> data, left - 1)

      :finish when left < 10 ->
        run(Buffer.finish(buffer), model, left - 1)

      what when what in [:add, :finish] ->
        run(buffer, model, left - 1)

      what ->
        assert Buffer.empty?(buffer) == (model == "")
        expected = expect(model, what, buffer.ended?)

        case Buffer.take(buffer, what) do
          {:ok, data, buffer} ->
            assert data == expected
            rest = binary_part(model, byte_size(data), byte_size(model) - byte_size(data))
            run(buffer, rest, left - 1)

          {answer, buffer} ->
            assert answer == expected
            run(buffer, model, left - 1)
        end
    end
  end

  # With newlines in it.
  defp random(size), do: for(_ <- 1..size, into: "", do: Enum.random(["a", "b", "c", "\n"]))

  test "pieces stay what they are" do
    buffer = Buffer.new(:pieces) |> Buffer.add(["a\n", ""]) |> Buffer.add(["b"])
    assert {:ok, "a\n", buffer} = Buffer.take(buffer, :any)
    assert {:ok, "", buffer} = Buffer.take(buffer, :line)
    refute Buffer.empty?(buffer)
    assert {:ok, "b", buffer} = Buffer.take(buffer, :any)
    assert {:more, buffer} = Buffer.take(buffer, :any)
    assert {:eof, _buffer} = buffer |> Buffer.finish() |> Buffer.take(:any)
  end

  test "a line is too long by the limit, and stays" do
    buffer = Buffer.add(Buffer.new(:bytes), ["12345"])
    assert {:more, _buffer} = Buffer.take(buffer, :line, 6)
    assert {:too_long, buffer} = Buffer.take(buffer, :line, 5)
    buffer = Buffer.add(buffer, ["\n"])
    assert {:ok, "12345\n", _buffer} = Buffer.take(buffer, :line, 6)
    assert {:too_long, buffer} = Buffer.take(buffer, :line, 5)
    assert {:ok, "12345\n", _buffer} = Buffer.take(buffer, :any)
  end

  test "what is waited for costs no more than its length" do
    piece = :binary.copy("x", 1_000)

    cost = fn what, pieces ->
      {:reductions, before} = Process.info(self(), :reductions)

      Enum.reduce(1..pieces, Buffer.new(:bytes), fn _number, buffer ->
        {:more, buffer} = buffer |> Buffer.add([piece]) |> Buffer.take(what)
        buffer
      end)

      {:reductions, now} = Process.info(self(), :reductions)
      now - before
    end

    for what <- [:line, 100_000_000], do: assert(cost.(what, 10_000) < 20 * cost.(what, 1_000))
  end
end
